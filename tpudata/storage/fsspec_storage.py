"""Stores that fsspec supports: s3://, abfs://, hdfs:// and others, each through the package that fsspec names for it.

fsspec's interface has no checksums, and conditional writes only for some stores. So data are compared with the size that the store
states, and parts are read twice. If two runs begin in one folder at the same moment, both may take it, unless the store's package
can create a file exclusively (s3fs can).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import posixpath
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from tpudata.errors import MissingExtraError, StorageError, StorageUnavailableError, TpudataError
from tpudata.storage.interface import Entry
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

_BLOCK_BYTES = 8 << 20
# Schemes whose uploads can be abandoned.
_WHOLE = ("s3", "s3a")
# Errors about one path; any other error is one of the store or the connection.
_OF_THE_PATH = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def is_known(scheme: str) -> bool:
    """Return whether fsspec has a package for a scheme.

    Raises:
        MissingExtraError: fsspec is not installed.
    """
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        raise MissingExtraError(f"{scheme}:// paths", "fsspec") from None
    return scheme in known_implementations


class FsspecStorage:
    """A store through fsspec; `Storage` describes the methods.

    Credentials and endpoints come from fsspec's configuration (FSSPEC_S3_ENDPOINT_URL, ~/.config/fsspec/conf.json) and from
    the store's package.

    Args:
        scheme: scheme of the paths, such as `"s3"`.

    Raises:
        StorageError: fsspec's package for the scheme is not installed.
    """

    def __init__(self, scheme: str) -> None:
        import fsspec

        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise StorageError(f"{scheme}://: {error}") from None
        self._fsspec = fsspec
        self._scheme = scheme

    def join(self, base: str, *parts: str) -> str:
        """Return the path of something below `base`."""
        return "/".join((base.rstrip("/"), *parts))

    def list(self, folder: str) -> list[Entry]:
        """Return what is directly inside a folder, sorted by name."""
        with _named("listed", folder):
            files, own = self._at(folder)
            found = files.ls(own, detail=True)
        # Some stores list an empty object that marks the folder itself.
        inside = [item for item in found if item["name"].strip("/") != own.strip("/")]
        # Stores without folders list a missing one as empty.
        if not found and self.stat(folder) is None:
            raise StorageError(f"{folder} could not be listed: there is nothing below it. Check the path.")
        entries = [_entry(self.join(folder, item["name"].rstrip("/").rpartition("/")[2]), item) for item in inside]
        return sorted(entries, key=operator.attrgetter("name"))

    @property
    def lists_deep(self) -> bool:
        """Return False: not every store lists trees."""
        return False

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield what is directly inside a folder, in order; fsspec lists it all at once."""
        assert not deep, "fsspec lists folder by folder"
        named = sorted((f"{entry.name}/" if entry.is_folder else entry.name, entry) for entry in self.list(folder))
        found = (entry for name, entry in named if start <= name and (stop is None or name < stop))
        yield from itertools.islice(found, limit)

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return nothing: a part of a folder takes as long to list as all of it."""
        del folder, deep
        return ()

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at a path, or None."""
        with _named("looked up", path):
            files, own = self._at(path)
            try:
                return _entry(path, files.info(own))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole file."""
        with _named("read", path):
            files, own = self._at(path)
            data = bytes(files.cat_file(own))
            stated = size if size == len(data) else files.info(own)["size"]
        if len(data) != stated:
            raise StorageUnavailableError(f"{path} could not be read: got {len(data)} bytes of {stated}. Try again.")
        return data

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the file."""
        if length <= 0:
            return b""
        with _named("read", path):
            data = self._part(path, offset, length)
            again = data if is_checked else self._part(path, offset, length)
        if data != again:
            raise StorageUnavailableError(
                f"{path} could not be read: {length} bytes from {offset} differed between two reads. Try again."
            )
        return data

    def expect(self, path: str, offset: int, length: int) -> None:
        """Do nothing: many threads request read-ahead themselves."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading from start to end, 8 MiB a request."""
        with _named("opened", path):
            files, own = self._at(path)
            return files.open(own, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Write a file that appears under its name when the context ends without an error."""
        with _named("written", path):
            files, own = self._at(path)
            is_taken = not replace and files.exists(own)
        if is_taken:
            # Another attempt at the same work may have written it.
            with tempfile.TemporaryFile() as copy:
                yield copy
                self._check_equal(copy, path)
            return
        with _named("written", path):
            folder = posixpath.dirname(own)
            files.makedirs(folder, exist_ok=True)
            is_whole = self._scheme in _WHOLE
            # Without uploads that can be abandoned, the file is written under another name.
            name = own if is_whole else f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
            file = files.open(name, "wb", **({"autocommit": False} if is_whole else {}))
        try:
            with _named("written", path, OSError):
                yield file
            with _named("written", path):
                file.close()
                if is_whole:
                    file.commit()
                else:
                    files.mv(name, own)
        except BaseException:
            with contextlib.suppress(Exception):
                if is_whole:
                    file.discard()
                    # Otherwise, garbage collection would write the open file after all.
                    file.closed = True
                else:
                    file.close()
                    files.rm_file(name)
            raise

    def _check_equal(self, copy: BinaryIO, path: str) -> None:
        """Raise StorageError unless a file has the bytes of a copy."""
        copy.seek(0)
        with self.open(path) as standing:
            while True:
                part = copy.read(_BLOCK_BYTES)
                if part != _read_fully(standing, max(1, len(part))):
                    raise StorageError(
                        f"{path} could not be written: it is there already, with other bytes. Remove it, or write elsewhere."
                    )
                if not part:
                    return

    def check_writable(self, path: str) -> None:
        """Raise StorageError if a path could not be written; writes an empty file there, and removes it."""
        probe = self.join(path, f".tpudata-{uuid.uuid4().hex}")
        with _named("written", path):
            files, own = self._at(probe)
            files.pipe_file(own, b"")
            files.rm_file(own)

    def delete(self, path: str) -> None:
        """Remove a file; no error if there is none."""
        with _named("deleted", path), contextlib.suppress(FileNotFoundError):
            files, own = self._at(path)
            files.rm_file(own)

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small file, if it is `old`, by `new`; return whether that was done."""
        with _named("written", path):
            files, own = self._at(path)
            try:
                found = bytes(files.cat_file(own))
            except FileNotFoundError:
                found = None
            if found != old or (found is None and new is None):
                return found == old
            if new is None:
                files.rm_file(own)
                return True
            try:
                files.pipe_file(own, new, **({"mode": "create"} if old is None else {}))
            except FileExistsError:
                return False
        return True

    def _part(self, path: str, offset: int, length: int) -> bytes:
        files, own = self._at(path)
        try:
            data = bytes(files.cat_file(own, start=offset, end=offset + length))
        except Exception:
            # Some stores reject a range that begins after the end.
            if offset < files.info(own)["size"]:
                raise
            return b""
        if len(data) < length:
            # Only now the size is needed: the missing bytes may be after the end.
            wanted = max(0, min(length, files.info(own)["size"] - offset))
            if len(data) != wanted:
                raise StorageUnavailableError(
                    f"{path} could not be read: cut (got {len(data)} bytes from {offset}, expected {wanted}). Try again."
                )
        return data

    def _at(self, path: str) -> tuple[Any, str]:
        """Return fsspec's file system for a path, which fsspec caches for each process, and the path in it."""
        files, own = self._fsspec.url_to_fs(path, use_listings_cache=False)
        return files, str(own)


def _read_fully(file: BinaryIO, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of a file."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _entry(path: str, item: dict[str, Any]) -> Entry:
    is_folder = item["type"] == "directory"
    name = path.rstrip("/").rpartition("/")[2]
    return Entry(path, name, 0 if is_folder else int(item["size"] or 0), is_folder)


@contextlib.contextmanager
def _named(done: str, path: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Turn any exception of a store's package into an error that names the path."""
    try:
        yield
    except TpudataError:
        raise
    except _OF_THE_PATH as error:
        raise StorageError(f"{path} could not be {done}: {_reason(error)}. Check the path and your access.") from error
    except kind as error:
        raise StorageUnavailableError(
            f"{path} could not be {done}: {_reason(error)}. Check the store, and run again."
        ) from error


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(f"{type(error).__name__}: {text}".split()).rstrip(".")
