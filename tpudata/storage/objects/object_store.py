"""The interface of an object store, which `CheckedStorage` turns into a `Storage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

from tpudata.storage.interface import Entry
from tpudata.storage.objects.retries import Retries


class Description(NamedTuple):
    """The store's description of an object.

    Attributes:
        size: bytes.
        version: number of this version, above 0; 0 if the store has no versions.
        crc32c: CRC-32C, as an unsigned integer, or None if the store has none.
        encoding: its Content-Encoding, or None.
    """

    size: int
    version: int = 0
    crc32c: int | None = None
    encoding: str | None = None


class Content(NamedTuple):
    """Bytes of an object, with the facts about them in the store's answer.

    Attributes:
        data: the bytes.
        is_whole: whether they are the whole object, even if a part was requested.
        offset: number of bytes before them in the object.
        size: bytes of the whole object, or None if the answer does not state them.
        crc32c: CRC-32C of the whole object, or None if the answer does not state it.
    """

    data: bytes
    is_whole: bool
    offset: int = 0
    size: int | None = None
    crc32c: int | None = None


class ObjectStore(Protocol):
    """The calls of a store, by full paths.

    `find`, `describe`, `get` and `remove` do not retry requests: the caller does, and compares what `get` returns with a checksum.

    Attributes:
        has_checksums: whether descriptions have a CRC-32C.
        retries: retries of calls.
    """

    has_checksums: bool
    retries: Retries

    def translate_errors(self, action: str, path: str) -> AbstractContextManager[None]:
        """Turn a failure into a StorageError with the path, the reason and the fix; `action` is what failed, such as "read"."""

    @property
    def lists_deep(self) -> bool:
        """Whether `scan` and `cuts` take `deep`, see `Storage.lists_deep`."""

    def scan(self, folder: str, start: str, stop: str | None, limit: int | None, *, deep: bool) -> Iterator[Entry]:
        """Yield the entries of a folder, as `Storage.scan` does, with the retries of the store."""

    def cuts(self, folder: str, *, deep: bool) -> Sequence[str]:
        """Return names that divide a folder into ranges, as `Storage.cuts` does, with the retries of the store."""

    def find(self, path: str) -> Entry | None:
        """Return the object or folder at a path, or None."""

    def describe(self, path: str) -> Description | None:
        """Return the description of an object, or None if it does not exist."""

    def get(self, path: str, span: tuple[int, int] | None, version: int | None) -> Content:
        """Return an object, or a part of it.

        Args:
            path: path of the object.
            span: offset and length of the part; None for all of it.
            version: version that is read; None for the current one.

        Raises:
            AbsentError: the object or the version does not exist.
            RangeError: the part begins at or after the end.
            StorageError: the object is stored in a form that cannot be read.
        """

    def remove(self, path: str, version: int | None) -> None:
        """Remove an object if it is this version; any version if `version` is None, or the store has no versions.

        Raises:
            AbsentError: the object does not exist.
            ConflictError: the object is another version.
            UnprovenError: the object may still exist.
        """

    def put(self, path: str, data: bytes, version: int | None) -> None:
        """Write a small object in place of a version of it, or a new one if `version` is None, with retries and proof.

        Raises:
            ConflictError: the object is another version, or exists although `version` is None.
        """

    def write(self, path: str, *, replace: bool) -> AbstractContextManager[BinaryIO]:
        """Write an object, as `Storage.create` does, with retries and proof."""

    def check_writable(self, path: str) -> None:
        """Raise StorageError if nothing can be written at or below a path, as `Storage.check_writable` does."""
