"""Reading of an object from start to end."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import google_crc32c

from tpudata.errors import StorageUnavailableError
from tpudata.storage.objects.object_store import Description


class ObjectReader(io.RawIOBase):
    """One version of an object, read in parts; after the last one, all data is compared with the store's checksum, if it has one.

    Args:
        path: path of the object, for messages.
        description: description of the version, which states the size and perhaps the checksum.
        read: returns bytes of the object, given offset and length.
        part_bytes: bytes of a part in `readall`.
    """

    def __init__(self, path: str, description: Description, read: Callable[[int, int], bytes], part_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._description = description
        self._read = read
        self._part_bytes = part_bytes
        self._position = 0
        self._crc32c = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; StorageError if the store fails."""
        data = self._read_next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Read the rest; StorageError if the store fails."""
        # RawIOBase.readall requests 8 kB at a time.
        return b"".join(iter(lambda: self._read_next(self._part_bytes), b""))

    def _read_next(self, max_bytes: int) -> bytes:
        """Read at most `max_bytes` bytes from the current position; compare the checksum at the end.

        Raises:
            StorageUnavailableError: bytes are missing, or the checksum differs.
        """
        length = min(max_bytes, self._description.size - self._position)
        data = self._read(self._position, length) if length else b""
        if len(data) < length:
            raise StorageUnavailableError(
                f"{self._path} could not be read: got {len(data)} of {length} bytes at {self._position}. Run again."
            )
        self._position += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        # Compare with the last bytes, and not again in the empty read after them. Not every store has a checksum.
        is_complete = len(data) > 0 and self._position == self._description.size
        if is_complete and self._description.crc32c not in (None, self._crc32c):
            raise StorageUnavailableError(
                f"{self._path} could not be read: the received data do not match the store's checksum. Run again."
            )
        return data
