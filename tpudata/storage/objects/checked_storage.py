"""A `Storage` over the calls of an object store. An answer without proof counts as a failure of the transport, and is retried.

A proxy may answer 200 with nothing or with a page of HTML, shorten a body and its Content-Length alike, drop headers, or change
a bit. Proofs of reads:

    whole object    the CRC-32C in the answer or, without it, the size and CRC-32C of a description
    part            as many bytes as requested, at the offset that the answer states; there is no checksum, so it is read twice
    absence         a description that finds nothing
"""

from __future__ import annotations

import contextlib
import io
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO

import google_crc32c

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.interface import Entry
from tpudata.storage.objects.errors import AbsentError, ConflictError, RangeError, ReplacedError, UnprovenError
from tpudata.storage.objects.object_reader import ObjectReader
from tpudata.storage.objects.object_store import Content, Description, ObjectStore

# An object store answers a request in tens of milliseconds; 8 MiB per request keeps one reader above 100 MB/s.
_REQUEST_BYTES = 8 << 20


class CheckedStorage:
    """A storage whose answers are proven; `Storage` describes the methods.

    Args:
        store: the calls of the store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def join(self, base: str, *parts: str) -> str:
        """Return the path of something below `base`."""
        return "/".join((base.rstrip("/"), *parts))

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name."""
        return sorted(self.scan(folder), key=operator.attrgetter("name"))

    @property
    def lists_deep(self) -> bool:
        """Whether the store lists whole trees as fast as folders."""
        return self._store.lists_deep

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries of a folder, in the order of names; the store itself retries the listing."""
        return self._store.scan(folder, start, stop, limit, deep=deep)

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return names that divide a large folder into ranges; the store itself retries the listing."""
        return self._store.cuts(folder, deep=deep)

    def stat(self, path: str) -> Entry | None:
        """Return the object or folder at a path, or None."""
        with self._store.translate_errors("looked up", path):
            return self._store.retries.run(lambda: self._store.find(path))

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole object."""
        return self._read_whole(path, version=None, size=size)

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the object."""
        return self._read_part(path, offset, length, version=None, needs_one_read=is_checked)

    def expect(self, path: str, offset: int, length: int) -> None:
        """Do nothing: readers of an object store read ahead in separate threads."""

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading, 8 MiB a request; a store with versions reads one version, even if another replaces it."""
        with self._store.translate_errors("opened", path):
            description = self._store.retries.run(lambda: self._store.describe(path))
            if description is None:
                raise AbsentError(404, "no such object")
        version = description.version
        # With a checksum, the reader compares the whole object at its end. A store without checksums has nothing to compare with,
        # and reading large files twice would cost too much.
        needs_one_read = description.crc32c is not None or not self._store.has_checksums

        def read(offset: int, length: int) -> bytes:
            """Return a range of the object."""
            if length == description.size:
                # A whole object is compared before it is returned, so that it can be retried.
                return self._read_whole(path, version, description.size)
            return self._read_part(path, offset, length, version, needs_one_read=needs_one_read)

        return io.BufferedReader(ObjectReader(path, description, read, _REQUEST_BYTES), _REQUEST_BYTES)

    def create(self, path: str, *, replace: bool = True) -> AbstractContextManager[BinaryIO]:
        """Write an object that is invisible until the context ends without an error."""
        return self._store.write(path, replace=replace)

    def check_writable(self, path: str) -> None:
        """Raise StorageError if a path cannot be written."""
        self._store.check_writable(path)

    def delete(self, path: str) -> None:
        """Remove an object; no error if it does not exist."""
        with self._store.translate_errors("deleted", path), contextlib.suppress(AbsentError):
            self._store.retries.run(lambda: self._store.remove(path, version=None))

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small object with `new` if it equals `old`; return whether it was replaced.

        None means no object.
        """
        with self._store.translate_errors("written", path):
            description = self._store.retries.run(lambda: self._store.describe(path))
        try:
            content = None if description is None else self._read_whole(path, description.version, description.size)
        except StorageUnavailableError:
            # An outage does not mean that the object has changed.
            raise
        except StorageError:
            # The object was replaced after the description, so nothing is known about its content.
            return False
        if content != old:
            return False
        # There is nothing to remove.
        if description is None and new is None:
            return True
        version = None if description is None else description.version
        with self._store.translate_errors("written", path):
            try:
                if new is None:
                    # An earlier attempt of this call, whose answer was lost, may have removed it.
                    with contextlib.suppress(AbsentError):
                        self._store.retries.run(lambda: self._store.remove(path, version))
                else:
                    self._store.put(path, new, version)
            except ConflictError:
                return False
        return True

    def _read_whole(self, path: str, version: int | None, size: int | None) -> bytes:
        """Return a whole object.

        Args:
            path: path of the object.
            version: version to read; None for the current one.
            size: its probable size in bytes, or None.
        """

        def read() -> bytes:
            content = self._store.get(path, span=None, version=version)
            self._check_whole(path, version, content, size)
            return content.data

        return self._read_with_retries(path, version, read)

    def _read_part(self, path: str, offset: int, length: int, version: int | None, *, needs_one_read: bool) -> bytes:
        """Return a range of an object.

        Args:
            path: path of the object.
            offset: first byte.
            length: number of bytes.
            version: version to read; None for the current one.
            needs_one_read: whether one read is enough, since the caller compares a checksum or the store has none; otherwise the
                range is read twice, unless a checksum proves it.
        """
        if length <= 0:
            return b""

        def read_once() -> tuple[bytes, bool]:
            return self._get_part(path, offset, length, version)

        def read_and_compare() -> bytes:
            """Return the range, proven by a checksum, by a second read, or by the caller."""
            if offset == 0 or needs_one_read:
                # A part from 0 may be the whole object, which has a checksum.
                data, is_proven = read_once()
                if is_proven or needs_one_read:
                    return data
                second_data, _ = read_once()
            else:
                # Read twice at the same time.
                with ThreadPoolExecutor(1, thread_name_prefix="tpudata-again") as pool:
                    second_read = pool.submit(read_once)
                    data, _ = read_once()
                    second_data, _ = second_read.result()
            if data != second_data:
                raise UnprovenError("two reads of one part of an object differ")
            return data

        return self._read_with_retries(path, version, read_and_compare)

    def _get_part(self, path: str, offset: int, length: int, version: int | None) -> tuple[bytes, bool]:
        """Return a part of an object, and whether it is proven without a second read.

        Raises:
            UnprovenError: nothing proves that these are the requested bytes.
        """
        try:
            content = self._store.get(path, (offset, length), version)
        except RangeError:
            description = self._store.describe(path)
            if description is None or offset < description.size:
                raise UnprovenError("an answer 416 to a range that does not begin after the object's end") from None
            # The description proves that the part begins at or after the end.
            return b"", True
        data, size = content.data, content.size
        if content.is_whole:
            # A server may ignore the range.
            self._check_whole(path, version, content, size=None)
            return data[offset : offset + length], True
        if size is None and len(data) < length:
            # The missing bytes may be after the end.
            size = self._describe(path, version).size
        expected_bytes = length if size is None else max(0, min(length, size - offset))
        if content.offset != offset or len(data) != expected_bytes:
            raise UnprovenError(
                f"received {len(data)} bytes from {content.offset} for {expected_bytes} bytes from {offset}"
            )
        # The checksum is of the whole object, so it proves a part only if the part is all of the object.
        if len(data) != size or content.crc32c is None:
            return data, False
        _check_checksum(content.crc32c, data)
        return data, True

    def _check_whole(self, path: str, version: int | None, content: Content, size: int | None) -> None:
        """Check that received bytes are a whole object.

        Args:
            path: path of the object.
            version: version that was requested; None for the current one.
            content: the received bytes.
            size: probable size of the object in bytes, or None.

        Raises:
            UnprovenError: they are not the whole object, or there is no proof that they are.
        """
        if content.crc32c is not None:
            _check_checksum(content.crc32c, content.data)
            return
        # Without checksums, a description would prove no more than the size that the caller knows.
        if size == len(content.data) and not self._store.has_checksums:
            return
        description = self._describe(path, version)
        if description.size != len(content.data):
            raise UnprovenError(f"received {len(content.data)} bytes of an object of {description.size}")
        if description.crc32c is not None:
            _check_checksum(description.crc32c, content.data)

    def _describe(self, path: str, version: int | None) -> Description:
        """Return the description of an object after some of its bytes arrived; UnprovenError unless this version exists."""
        description = self._store.describe(path)
        if description is None or version not in (None, description.version):
            raise UnprovenError("received bytes of an object that does not exist")
        return description

    def _read_with_retries(self, path: str, version: int | None, read: Callable[[], bytes]) -> bytes:
        """Return the result of `read`, with retries; an object counts as absent only if a description confirms it.

        Args:
            path: path of the object.
            version: version that `read` reads; None for any version.
            read: returns bytes of the object.

        Raises:
            StorageError: the object does not exist, `version` no longer exists, or the read failed.
        """

        def read_or_confirm() -> bytes:
            """Return the result of `read`; AbsentError only if a description confirms it."""
            try:
                return read()
            except AbsentError as error:
                description = self._store.describe(path)
                if description is not None and version in (None, description.version):
                    raise UnprovenError("an answer 404 to a read, but the object exists") from None
                if version is None:
                    raise
                raise ReplacedError(error.code, error.message) from error

        with self._store.translate_errors("read", path):
            return self._store.retries.run(read_or_confirm)


def _check_checksum(crc32c: int, data: bytes) -> None:
    """Raise UnprovenError unless this is the CRC-32C of the data."""
    if crc32c != google_crc32c.value(data):
        raise UnprovenError("the received data do not match the store's checksum")
