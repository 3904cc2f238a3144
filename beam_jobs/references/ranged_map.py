"""Label maps next to their pictures in an archive, read by the worker that converts the picture."""

from __future__ import annotations

import dataclasses

from beam_jobs.references.reading import MAX_INPUT_BYTES
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage import storage_for


@dataclasses.dataclass(frozen=True)
class RangedMap:
    """A label map as large as its picture, as a value of the picture's reference: a range of a file.

    Attributes:
        path: path of the file that contains the map.
        offset: offset of the map's first byte in the file.
        size: number of the map's bytes.
    """

    path: str
    offset: int
    size: int

    def tolist(self) -> list[int]:
        """Return the facts that identify the map in an input's hash, see `features_text`: not the offset, which may change."""
        return [self.size]

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            ValueError: the bytes cannot be read, are too many, or end early.
            StorageUnavailableError: the store does not answer.
        """
        if self.size > MAX_INPUT_BYTES:
            raise ValueError(f"its label map is too large: {self.size} bytes")
        try:
            data = storage_for(self.path).read_range(self.path, self.offset, self.size)
        except StorageUnavailableError:
            # An outage aborts the job; --on-bad-record=skip never counts it as a bad record.
            raise
        except StorageError as error:
            raise ValueError(f"its label map cannot be read: {error}") from None
        if len(data) < self.size:
            raise ValueError(f"its label map is cut: {len(data)} of {self.size} bytes")
        return data
