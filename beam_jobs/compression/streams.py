"""The bytes of a file from an offset on, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

from beam_jobs.compression.files import CHUNK_BYTES
from tpudata.errors import SourceError
from tpudata.storage import storage_for

# Bytes after a range are read in small steps, since the last record of the range ends soon.
_AFTER_BYTES = 1 << 16


def plain_chunks(path: str, start: int, stop: int) -> Iterator[bytes]:
    """Yield a file from byte `start` to its end: in chunks of 4 MB up to `stop`, and in small ones after it.

    Raises:
        SourceError: the file ends before `stop`, so it is shorter than when it was listed.
    """
    storage = storage_for(path)
    while True:
        length = min(CHUNK_BYTES, stop - start) if start < stop else _AFTER_BYTES
        chunk = storage.read_range(path, start, length)
        if chunk:
            yield chunk
        if len(chunk) < length:
            size = start + len(chunk)
            if size < stop:
                raise SourceError(
                    f"{path} was cut during the run (got {size} bytes, expected {stop} at least). Run again when it is complete."
                )
            return
        start += length
