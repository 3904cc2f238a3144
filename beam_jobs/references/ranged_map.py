"""Label maps that lie next to their pictures in an archive."""

from __future__ import annotations

import dataclasses

from beam_jobs.references.reading import MOST_INPUT_BYTES
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage import storage_for


@dataclasses.dataclass(frozen=True)
class RangedMap:
    """A label map as large as its picture, as a value of its reference: a range of a file, read when the picture is converted.

    Attributes:
        path: the file.
        offset: first byte.
        size: number of bytes.
    """

    path: str
    offset: int
    size: int

    def tolist(self) -> list[int]:
        """Return the part of the map that identifies it in an input's entry: not its position, which may move."""
        return [self.size]

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            ValueError: they cannot be read.
            StorageUnavailableError: the store does not answer.
        """
        if self.size > MOST_INPUT_BYTES:
            raise ValueError(f"its label map is too large: {self.size} bytes")
        try:
            data = storage_for(self.path).read_range(self.path, self.offset, self.size)
        except StorageUnavailableError:
            raise
        except StorageError as error:
            raise ValueError(f"its label map cannot be read: {error}") from None
        if len(data) < self.size:
            raise ValueError(f"its label map is cut: {len(data)} of {self.size} bytes")
        return data
