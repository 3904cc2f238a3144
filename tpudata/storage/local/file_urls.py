"""Local files by URL: `file:///PATH`, as tools and lists write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import _GeneratorContextManager
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from tpudata.errors import StorageError
from tpudata.storage.interface import Entry
from tpudata.storage.local.local_storage import LocalStorage

_THIS_MACHINE = ("", "localhost")


class FileUrls(LocalStorage):
    """Local files by URL; `Storage` describes the methods. Paths that are derived from a URL are plain paths."""

    def join(self, base: str, *parts: str) -> str:
        """Return the plain path of something below a URL."""
        return super().join(local_path(base), *parts)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name."""
        return super().list(local_path(folder))

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries of a folder, in order."""
        return super().scan(local_path(folder), start=start, stop=stop, limit=limit, deep=deep)

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return names that divide a large folder into ranges."""
        return super().cuts(local_path(folder), deep=deep)

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at a URL, or None."""
        return super().stat(local_path(path))

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole file."""
        return super().read(local_path(path), size)

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the file."""
        return super().read_range(local_path(path), offset, length, is_checked=is_checked)

    def expect(self, path: str, offset: int, length: int) -> None:
        """Let the system start reading a range into its page cache."""
        super().expect(local_path(path), offset, length)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        return super().open(local_path(path))

    def create(self, path: str, *, replace: bool = True) -> _GeneratorContextManager[BinaryIO]:
        """Write a file that appears under its name whole or not at all."""
        return super().create(local_path(path), replace=replace)

    def check_writable(self, path: str) -> None:
        """Raise StorageError if a path cannot be written."""
        super().check_writable(local_path(path))

    def delete(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        super().delete(local_path(path))

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small file with `new` if it equals `old`; return whether that was done."""
        return super().swap(local_path(path), old, new)


def local_path(path: str) -> str:
    """Return the plain path of a file URL (RFC 8089); return any other path unchanged.

    Raises:
        StorageError: the URL names another machine, or no path.
    """
    if not path.startswith("file://"):
        return path
    url = urlsplit(path)
    if not url.path:
        raise StorageError(f"{path}: a URL without a path (expected file:///PATH). Pass the path of a file or folder.")
    if url.netloc not in _THIS_MACHINE:
        raise StorageError(f"{path}: a file on another machine (expected file:///PATH). Mount it, and pass its path.")
    # `?` and `#` are ordinary characters of file names.
    return unquote(path.removeprefix(f"file://{url.netloc}"))
