"""The interface of a storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

from tpudata.errors import StorageError


def make_not_a_file_error(path: str) -> StorageError:
    """Return the error for the path of a pipe, a socket or a device: reading it could block or never end."""
    return StorageError(f"{path}: neither a file nor a folder. Move it away, or pass another path.")


class Entry(NamedTuple):
    """A file or a folder.

    Attributes:
        path: full path.
        name: last part of the path.
        size: bytes, 0 for a folder.
        is_folder: whether it is a folder.
        crc32c: CRC-32C of an object, as an unsigned integer; None for folders and if the storage has none.
        is_special: whether it is a pipe, a socket or a device of a disk, which only `Storage.scan` yields.
    """

    path: str
    name: str
    size: int
    is_folder: bool
    crc32c: int | None = None
    is_special: bool = False

    def checked(self) -> Entry:
        """Return the entry; StorageError for a pipe, a socket or a device, whose reading could block or never end."""
        if self.is_special:
            raise make_not_a_file_error(self.path)
        return self


class Storage(Protocol):
    """A place that holds files. Implementations are safe to share between threads and raise StorageError."""

    def join(self, base: str, *parts: str) -> str:
        """Return the path of `parts` below `base`, each a name or a path."""

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name; StorageError if the folder does not exist, or has a special entry."""

    @property
    def lists_deep(self) -> bool:
        """Whether `scan` and `cuts` take `deep`: some object stores list whole trees as fast as folders."""

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries of a folder, for folders of millions of files.

        Args:
            folder: folder to list.
            start: first name of the range; the names of folders end in `/`.
            stop: first name after the range; None for all names from `start` on.
            limit: maximum number of entries, the first in order; None for all.
            deep: whether to list all files below the folder instead, and no folders; `start` and `stop` are paths below it.

        Returns:
            Entries in the order of their names, with a `/` after the names of folders; with `deep`, in the order of their
            paths. Call `Entry.checked` on each entry whose name the caller does not skip.

        Raises:
            StorageError: the folder does not exist. With `start` or `stop`, some stores yield nothing instead.
        """

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return names at which a large folder can be cut into ranges of `scan`, so that many workers list it.

        They depend only on the names in the folder, so every call on every machine returns the same cuts.

        Args:
            folder: folder whose names are cut.
            deep: whether to cut the paths of all files below the folder instead.

        Returns:
            Names in ascending order, without `""`; empty if the folder is small.

        Raises:
            StorageError: the folder cannot be listed. Object stores return no names for a folder that does not exist.
        """

    def stat(self, path: str) -> Entry | None:
        """Return the file or folder at a path; None if neither exists; StorageError for a pipe, a socket or a device."""

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole file; its probable `size` in bytes may save a request."""

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the file.

        Args:
            path: path of the file.
            offset: first byte.
            length: number of bytes.
            is_checked: whether the caller compares the bytes with a checksum. Without it, object stores, which have no checksums of
                parts, read the range twice and compare the two.
        """

    def expect(self, path: str, offset: int, length: int) -> None:
        """Hint that this range will be read soon. May start readahead; never raises."""

    def open(self, path: str) -> BinaryIO:
        """Return a file opened for reading from start to end, buffered."""

    def create(self, path: str, *, replace: bool = True) -> AbstractContextManager[BinaryIO]:
        """Write a file that appears under its name whole, when the context ends without an error, or not at all.

        Missing folders are created. An existing file is replaced. With `replace=False`, an object store raises StorageError
        instead, unless the bytes are the same; a disk still replaces it.
        """

    def check_writable(self, path: str) -> None:
        """Raise StorageError if a file or folder of this path, which need not exist, cannot be written; leaves no trace."""

    def delete(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small file with `new` if it equals `old`; return whether that was done.

        None stands for no file. If several callers try at the same time, one succeeds, provided that all contents ever written
        differ. Several machines may succeed on a disk without hard links, or a store of fsspec without exclusive creation.
        """
