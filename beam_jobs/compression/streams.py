"""The bytes of a file from an offset on, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from beam_jobs.compression.files import CHUNK_BYTES
from tpudata.errors import SourceError
from tpudata.storage import storage_for


class ReadSizes(NamedTuple):
    """Sizes of reads for a range of a file, in bytes.

    Attributes:
        inside: for reads in the range.
        before: for a read before the range, to find where its first record begins.
        after: for reads after the range: small, since the range's last record ends soon.
    """

    inside: int = CHUNK_BYTES
    before: int = 1 << 10
    after: int = 1 << 16


READ_SIZES = ReadSizes()


def read_plain_chunks(path: str, start: int, stop: int, sizes: ReadSizes = READ_SIZES) -> Iterator[bytes]:
    """Yield a file from byte `start` to its end: in large chunks up to `stop`, and in small ones after it.

    A reader of the range stops soon after `stop`, when the record that contains it ends.

    Args:
        path: path of the uncompressed file.
        start: offset of the first byte to yield.
        stop: end of the range.
        sizes: bytes of the reads in the range and after it.

    Raises:
        SourceError: the file ends before `stop`: it was truncated after it was listed.
    """
    storage = storage_for(path)
    offset = start
    while True:
        length = min(sizes.inside, stop - offset) if offset < stop else sizes.after
        chunk = storage.read_range(path, offset, length)
        if chunk:
            yield chunk
        if len(chunk) < length:
            size = offset + len(chunk)
            if size < stop:
                raise SourceError(
                    f"{path} was cut during the run (got {size} bytes, expected {stop} at least). Run again when it is complete."
                )
            return
        offset += length
