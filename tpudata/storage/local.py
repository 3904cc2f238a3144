"""Files on a local or mounted disk."""

from __future__ import annotations

import contextlib
import os
import stat as stat_bits
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tpudata.errors import StorageError
from tpudata.storage._interface import Entry

# Temporary files begin with a dot, so that no glob such as `train-*` sees them.
TEMPORARY_PREFIX = ".tpudata-"
_BUFFER_BYTES = 1 << 20


class LocalStorage:
    """Local files; see `Storage` for what each method promises."""

    def join(self, base: str, *parts: str) -> str:
        """The path of something below `base`."""
        return str(Path(base, *parts))

    def list(self, folder: str) -> list[Entry]:
        """What is directly inside a folder, sorted by name."""
        with _named("listed", folder), os.scandir(folder) as entries:
            return sorted((_entry(entry) for entry in entries), key=lambda entry: entry.name)

    def stat(self, path: str) -> Entry | None:
        """The file or folder at a path, or None."""
        with _named("looked up", path):
            try:
                found = Path(path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        is_folder = Path(path).is_dir()
        return Entry(path, Path(path).name, 0 if is_folder else found.st_size, is_folder)

    def read(self, path: str) -> bytes:
        """A whole file."""
        # Unbuffered is one open, one fstat and one read: cheaper than pathlib for small files.
        with _named("read", path), open(path, "rb", buffering=0) as file:
            return file.readall()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        with _named("read", path), open(path, "rb", buffering=0) as file:
            file.seek(offset)
            parts = []
            while length > 0 and (part := file.read(length)):
                parts.append(part)
                length -= len(part)
            return b"".join(parts)

    def open(self, path: str) -> BinaryIO:
        """A file opened for reading, with a 1 MiB buffer."""
        with _named("opened", path):
            return open(path, "rb", buffering=_BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Writes to a temporary file beside `path`, and renames it when the context ends without an error."""
        target = Path(path)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{target.name}.{uuid.uuid4().hex}"
        with _named("written", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            file = open(temporary, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        try:
            with _named("written", path):
                yield file
                file.flush()
                os.fsync(file.fileno())
                file.close()
                temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
            temporary.unlink(missing_ok=True)
            raise

    def delete(self, path: str) -> None:
        """Removes a file; no error where there is none."""
        with _named("deleted", path):
            Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _named(done: str, path: str) -> Iterator[None]:
    """Turns an operating system error into one that says which file could not be `done`, and why."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} could not be {done}: {error.strerror or error}") from error


def _entry(entry: os.DirEntry[str]) -> Entry:
    try:
        found = entry.stat()
    except FileNotFoundError:
        # A link that points nowhere: reading it is what fails, and names it.
        return Entry(entry.path, entry.name, 0, False)
    except OSError as error:
        raise StorageError(f"{entry.path} could not be looked up: {error.strerror or error}. Move it away.") from error
    is_folder = stat_bits.S_ISDIR(found.st_mode)
    if not is_folder and not stat_bits.S_ISREG(found.st_mode):
        # A pipe or a device would be waited for, or read without end.
        raise StorageError(f"{entry.path} is neither a file nor a folder. Move it away.")
    return Entry(entry.path, entry.name, 0 if is_folder else found.st_size, is_folder)
