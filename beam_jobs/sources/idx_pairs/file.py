"""One IDX file: its header and its values.

The layout (yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT"):

    bytes       what
    2           zero
    1           type of the values: 8 is unsigned byte, the only one read here
    1           number of dimensions: 3 for images, 4 if there are channels, 1 for labels
    4 each      sizes, big-endian
    ...         the values, the last dimension fastest
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

from beam_jobs.compression.files import open_decompressed, read_compression, read_head
from beam_jobs.references.ranged_file import file_size
from tpudata.errors import CorruptionError, SourceError
from tpudata.images.header import MAX_PIXELS
from tpudata.storage import storage_for

_MAGIC, _UNSIGNED_BYTE = 4, 8
_PIECE_BYTES = 1 << 20
# Labels that are read at once.
_LABELS = 1 << 16
_TOO_SHORT = "the file ends before the last record that its header counts"
_FIX = "Download it again, or remove it from the input."


def read_header(path: str, dimensions: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of an IDX file, and the bytes of its header; checks its size if it is not compressed."""
    head = read_head(path, _MAGIC + 4 * 4)
    if len(head) < _MAGIC or head[:2] != b"\0\0" or head[3] not in dimensions:
        raise SourceError(
            f"{path} is not an IDX file of {' or '.join(map(str, dimensions))} dimensions: it begins with {head[:4]!r}. {_FIX}"
        )
    if head[2] != _UNSIGNED_BYTE:
        raise SourceError(f"{path} has values of IDX type 0x{head[2]:02x} (expected 0x08, unsigned bytes). {_FIX}")
    length = _MAGIC + 4 * head[3]
    if len(head) < length:
        raise CorruptionError(path, 0, f"the file ends inside its header ({len(head)} of {length} bytes)")
    sizes = struct.unpack(f">{head[3]}I", head[_MAGIC:length])
    if not read_compression(path) and file_size(path) != length + math.prod(sizes):
        shape = " x ".join(map(str, sizes))
        raise CorruptionError(
            path,
            min(file_size(path), length + math.prod(sizes)),
            f"{file_size(path)} bytes, where its header says {shape}",
        )
    return sizes, length


def check_shape(path: str, shape: tuple[int, ...]) -> None:
    """Raise SourceError if no image of the shape that a header says is converted: before memory is taken for one."""
    height, width, channels = (*shape, 1)[:3]
    if not 0 < height * width <= MAX_PIXELS or channels not in (1, 3):
        raise SourceError(
            f"{path}: unsupported size of images (got {' x '.join(map(str, shape))}, expected at most {MAX_PIXELS:,} pixels of 1"
            f" or 3 channels). {_FIX}"
        )


def label_pieces(path: str, first: int, length: int) -> Iterator[bytes]:
    """Yield labels, a byte each, in pieces: a header may claim billions.

    Args:
        path: a file of labels.
        first: index of the first one; 0 if the file is compressed.
        length: number of labels.

    Raises:
        CorruptionError: the file has fewer, or if it is compressed, more.
    """
    start = _MAGIC + 4
    sizes = (min(_LABELS, length - first_label) for first_label in range(0, length, _LABELS))
    compression = read_compression(path)
    if not compression:
        start += first
        for size in sizes:
            labels = storage_for(path).read_range(path, start, size)
            start += len(labels)
            if len(labels) < size:
                raise CorruptionError(path, start, _TOO_SHORT)
            yield labels
        return
    with open_decompressed(path, compression) as file:
        file.seek(start)
        for size in sizes:
            yield read_exactly(file, size, path)
        reject_more(file, path)


def read_exactly(file: BinaryIO, size: int, path: str) -> bytes:
    """Return the next `size` bytes of a file; CorruptionError if it has fewer."""
    # Reading takes memory for all that is asked for, and the file may have less.
    pieces, missing = [], size
    while missing and (piece := file.read(min(missing, _PIECE_BYTES))):
        pieces.append(piece)
        missing -= len(piece)
    if missing:
        raise CorruptionError(path, file.tell(), _TOO_SHORT)
    return b"".join(pieces)


def reject_more(file: BinaryIO, path: str) -> None:
    """Raise CorruptionError if a file has more bytes."""
    if file.read(1):
        raise CorruptionError(path, file.tell() - 1, "there are bytes after the last record that the header counts")
