"""Files on a local or mounted disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import mmap
import operator
import os
import stat as stat_bits
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tpudata.errors import StorageError
from tpudata.storage.interface import Entry, make_not_a_file_error
from tpudata.storage.local.errors import WRITTEN, make_storage_error, translate_errors
from tpudata.storage.local.listing import RANGE_NAMES, cut_names, list_names
from tpudata.storage.local.uncached_file import UncachedFile, new_buffer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Temporary files begin with a dot, so that no glob such as `train-*` sees them.
TEMPORARY_PREFIX = ".tpudata-"
_BUFFER_BYTES = 1 << 20
# Errors of os.link on file systems without hard links, such as FAT (EPERM) and some mounts of networks and containers.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalStorage:
    """Local files; `Storage` describes the methods.

    Args:
        range_names: maximum number of names in a folder that `cuts` leaves whole; a larger one is cut once, into ranges of about
            this many names or fewer, but into at most 32 ranges, which are then larger.
    """

    def __init__(self, *, range_names: int = RANGE_NAMES) -> None:
        self._max_range_names = range_names
        # Buffers of written files are reused: allocating a new one costs as much as some ten images.
        self._buffers: list[mmap.mmap] = []

    def join(self, base: str, *parts: str) -> str:
        """Return the path of something below `base`."""
        return str(Path(base, *parts))

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name."""
        with translate_errors("listed", folder), os.scandir(folder) as entries:
            return sorted(
                (_look_up_entry(entry.path, entry.name, entry.stat).checked() for entry in entries),
                key=operator.attrgetter("name"),
            )

    @property
    def lists_deep(self) -> bool:
        """Return False: a disk lists folder by folder."""
        return False

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries of a folder, in order; memory holds only the names of the range."""
        assert not deep, "a disk lists folder by folder"
        for listed_name in list_names(folder, start, stop, limit):
            name = listed_name.rstrip("/")
            # pathlib would take three times as long.
            path = os.path.join(folder, name)  # noqa: PTH118
            yield _look_up_entry(path, name, functools.partial(os.stat, path))

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return the names that cut a folder of more than `range_names` names into ranges; empty for a smaller folder.

        Memory holds at most `range_names` names and a sample of 4,096.
        """
        assert not deep, "a disk lists folder by folder"
        return cut_names(folder, max_range_names=self._max_range_names)

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at a path, or None."""
        with translate_errors("looked up", path):
            try:
                stat_result = Path(path).stat()
            except (FileNotFoundError, NotADirectoryError, ValueError):
                # Python raises ValueError for a name with a NUL, which no file can have.
                return None
        return _make_entry(path, Path(path).name, stat_result).checked()

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole file."""
        # As few system calls as possible: for a file of 100 kB, Python's file objects cost a fifth more.
        try:
            descriptor = _open_descriptor(path)
            try:
                if size is None:
                    size = os.fstat(descriptor).st_size
                # One byte more than expected: if it is missing, the call has reached the end.
                data = os.read(descriptor, size + 1)
                if size > 0 and len(data) == size:
                    return data
                # The file states the size 0, as those in /proc do, has changed, or has more bytes than one call returns.
                return data + _read_rest(descriptor, sys.maxsize)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise make_storage_error("read", path, error) from error

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the file."""
        del is_checked  # Disks have checksums.
        try:
            descriptor = _open_descriptor(path)
            try:
                data = os.pread(descriptor, length, offset)
                if len(data) < length:
                    os.lseek(descriptor, offset + len(data), os.SEEK_SET)
                    data += _read_rest(descriptor, length - len(data))
                return data
            finally:
                os.close(descriptor)
        except OSError as error:
            raise make_storage_error("read", path, error) from error

    def expect(self, path: str, offset: int, length: int) -> None:
        """Ask the system to read a range into its page cache; return without waiting."""
        # Some systems do not have this call.
        if not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError, StorageError):
            descriptor = _open_descriptor(path)
            try:
                # The byte in the middle stands for the range.
                if not _is_in_memory(descriptor, offset + length // 2):
                    os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def open(self, path: str) -> BinaryIO:
        """Return a file opened for reading, with a 1 MiB buffer."""
        with translate_errors("opened", path):
            return io.BufferedReader(_ReadFile(path), _BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Write to a temporary file next to `path`, and rename it when the context ends without an error."""
        del replace  # Renaming replaces an existing file.
        target = Path(path)
        temporary_path = target.parent / f"{TEMPORARY_PREFIX}{target.name}.{uuid.uuid4().hex}"
        with translate_errors(WRITTEN, path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                buffer = self._buffers.pop()
            except IndexError:
                buffer = new_buffer()
            file = UncachedFile(temporary_path, buffer)
        try:
            with translate_errors(WRITTEN, path):
                yield cast(BinaryIO, file)
                file.flush()
                os.fsync(file.fileno())
                file.close()
                temporary_path.replace(target)
        except BaseException:
            # Raise the reason of the failed write, not of the failed cleanup.
            with contextlib.suppress(OSError):
                file.discard()
            with contextlib.suppress(OSError):
                temporary_path.unlink()
            raise
        finally:
            self._buffers.append(buffer)

    def check_writable(self, path: str) -> None:
        """Raise StorageError if a path cannot be written: make an unnamed file in the nearest existing folder."""
        absolute_path = Path(path).absolute()
        with translate_errors(WRITTEN, path):
            if absolute_path.is_file():
                absolute_path = absolute_path.parent
            while not absolute_path.exists() and absolute_path != absolute_path.parent:
                absolute_path = absolute_path.parent
            with tempfile.TemporaryFile(dir=absolute_path, prefix=TEMPORARY_PREFIX):
                pass

    def delete(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        with translate_errors("deleted", path):
            Path(path).unlink(missing_ok=True)

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small file with `new` if it equals `old`; return whether that was done. None means no file."""
        target = Path(path)
        with translate_errors(WRITTEN, path):
            if new is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with _lock(target.parent):
                    return _swap(target, old, new)
            except FileNotFoundError:
                # The folder, and so the file, does not exist, or another process has removed the temporary file.
                return old is None and new is None


class _ReadFile(io.FileIO):
    """A file opened for reading, whose errors name it.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "rb", opener=lambda path, _: _open_descriptor(path))
        self._path = path

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer; StorageError if the disk fails."""
        with translate_errors("read", self._path):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read the rest; StorageError if the disk fails."""
        with translate_errors("read", self._path):
            return super().readall()


def _open_descriptor(path: str) -> int:
    """Return the descriptor of a file for reading.

    Raises:
        StorageError: the file is a pipe or a device, whose reading could block or never end.
        OSError: the file cannot be opened.
    """
    try:
        # A pipe that nobody writes to would block; a file ignores the flag.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise make_not_a_file_error(path) from None
        if error.errno != errno.EWOULDBLOCK:
            raise
        # Another process, such as a file server, has a lease, which only files have: a blocking open waits until it gives the lease
        # up.
        return os.open(path, os.O_RDONLY)
    mode = os.fstat(descriptor).st_mode
    if stat_bits.S_ISREG(mode) or stat_bits.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise make_not_a_file_error(path)


def _swap(target: Path, old: bytes | None, new: bytes | None) -> bool:
    """Replace the content of a file with `new` if it equals `old`; return whether that was done. None means no file.

    The caller holds the lock of the file's folder.
    """
    try:
        descriptor = _open_descriptor(str(target))
    except FileNotFoundError:
        current = None
    else:
        with open(descriptor, "rb") as file:
            current = file.read()
    if current != old:
        return False
    if new is None:
        target.unlink(missing_ok=True)
        return True
    temporary_path = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary_path, "xb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        if old is None:
            return _link(temporary_path, target)
        temporary_path.replace(target)
        return True
    finally:
        temporary_path.unlink(missing_ok=True)


def _link(temporary_path: Path, target: Path) -> bool:
    """Give a temporary file the name `target`; return whether that was done.

    With hard links, the file has this name besides its own. If the name exists already, returns False: of two machines that try
    at the same time, one gets True.

    Without hard links, the file is renamed, so both machines may get True; not two processes of one machine, since the caller of
    `_swap` holds the lock of the folder.
    """
    try:
        os.link(temporary_path, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The disk has no hard links.
        temporary_path.replace(target)
    return True


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder against other processes of this machine; if this process dies, the system releases it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some mounted disks have no locks of folders; then no lock is held.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_in_memory(descriptor: int, offset: int) -> bool:
    """Return whether the page cache holds the byte of an open file at an offset; False if that is unknown."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        # With this flag, the call fails instead of waiting for the disk.
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def _read_rest(descriptor: int, length: int) -> bytes:
    """Return the next `length` bytes of an open file; fewer at its end."""
    parts = []
    remaining_bytes = length
    while remaining_bytes > 0 and (part := os.read(descriptor, min(remaining_bytes, _BUFFER_BYTES))):
        parts.append(part)
        remaining_bytes -= len(part)
    return b"".join(parts)


def _look_up_entry(path: str, name: str, stat: Callable[[], os.stat_result]) -> Entry:
    """Return the entry of a path in a listing.

    Args:
        path: full path of the entry.
        name: its name in the folder.
        stat: returns what the system knows of the path, or raises OSError.
    """
    try:
        stat_result = stat()
    except FileNotFoundError:
        # A broken link, or a file that was just removed: reading it fails, with its name.
        return Entry(path, name, size=0, is_folder=False)
    except OSError as error:
        raise make_storage_error("looked up", path, error) from error
    return _make_entry(path, name, stat_result)


def _make_entry(path: str, name: str, stat_result: os.stat_result) -> Entry:
    """Return the entry of a path; it is special if it is neither a file nor a folder, such as a pipe."""
    if stat_bits.S_ISREG(stat_result.st_mode):
        return Entry(path, name, stat_result.st_size, is_folder=False)
    is_folder = stat_bits.S_ISDIR(stat_result.st_mode)
    return Entry(path, name, size=0, is_folder=is_folder, is_special=not is_folder)
