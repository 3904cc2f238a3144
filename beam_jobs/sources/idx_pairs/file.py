"""One IDX file: its header and its values.

The layout (yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT"):

    bytes       meaning
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

# Bytes before the sizes.
_MAGIC_BYTES = 4
# Code of the type of values.
_UNSIGNED_BYTE = 8
_PIECE_BYTES = 1 << 20
# Labels, of a byte each, that are read together.
_PIECE_LABELS = 1 << 16
_TOO_SHORT = "the file ends before the last record that its header counts"
_FIX = "Download it again, or remove it from the input."


def read_header(path: str, allowed_dimension_counts: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the dimensions in an IDX file, and the number of bytes of its header.

    Args:
        path: path of the file, which may be compressed.
        allowed_dimension_counts: numbers of dimensions that the file may have.

    Raises:
        SourceError: the file is not an IDX file of unsigned bytes with an allowed number of dimensions.
        CorruptionError: the header is truncated, or the size of an uncompressed file differs from its header.
    """
    # The longest header has 4 sizes of 4 bytes.
    head = read_head(path, _MAGIC_BYTES + 4 * 4)
    if len(head) < _MAGIC_BYTES or head[:2] != b"\0\0" or head[3] not in allowed_dimension_counts:
        raise SourceError(
            f"{path} is not an IDX file of {' or '.join(map(str, allowed_dimension_counts))} dimensions: it begins with"
            f" {head[:4]!r}. {_FIX}"
        )
    if head[2] != _UNSIGNED_BYTE:
        raise SourceError(f"{path} has values of IDX type 0x{head[2]:02x} (expected 0x08, unsigned bytes). {_FIX}")
    dimension_count = head[3]
    header_bytes = _MAGIC_BYTES + 4 * dimension_count
    if len(head) < header_bytes:
        raise CorruptionError(path, 0, f"the file ends inside its header ({len(head)} of {header_bytes} bytes)")
    sizes = struct.unpack(f">{dimension_count}I", head[_MAGIC_BYTES:header_bytes])
    if not read_compression(path) and file_size(path) != header_bytes + math.prod(sizes):
        shape = " x ".join(map(str, sizes))
        raise CorruptionError(
            path,
            min(file_size(path), header_bytes + math.prod(sizes)),
            f"{file_size(path)} bytes, but its header says {shape}",
        )
    return sizes, header_bytes


def check_shape(path: str, shape: tuple[int, ...]) -> None:
    """Raise SourceError if images of a shape cannot be converted: memory is allocated only after this check of the header."""
    # Images of two dimensions have one channel.
    height, width, channels = (*shape, 1)[:3]
    if not 0 < height * width <= MAX_PIXELS or channels not in (1, 3):
        raise SourceError(
            f"{path}: unsupported size of images (got {' x '.join(map(str, shape))}, expected at most {MAX_PIXELS:,} pixels of 1"
            f" or 3 channels). {_FIX}"
        )


def read_label_pieces(path: str, first_label: int, label_count: int) -> Iterator[bytes]:
    """Yield labels, a byte each, in pieces: a header may claim billions.

    Args:
        path: path of a file of labels.
        first_label: index of the first label to read; 0 if the file is compressed.
        label_count: number of labels to read; all if the file is compressed.

    Raises:
        CorruptionError: the file has fewer labels, or if it is compressed, more.
    """
    # A file of labels has one dimension, so its header has one size of 4 bytes.
    start = _MAGIC_BYTES + 4
    sizes = (min(_PIECE_LABELS, label_count - piece_start) for piece_start in range(0, label_count, _PIECE_LABELS))
    compression = read_compression(path)
    if not compression:
        start += first_label
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
        reject_trailing_bytes(file, path)


def read_exactly(file: BinaryIO, size: int, path: str) -> bytes:
    """Return the next `size` bytes of a file; CorruptionError if it has fewer."""
    # Read in pieces: one read would allocate `size` bytes, which a header may claim, before it finds the end.
    pieces: list[bytes] = []
    missing_bytes = size
    while missing_bytes and (piece := file.read(min(missing_bytes, _PIECE_BYTES))):
        pieces.append(piece)
        missing_bytes -= len(piece)
    if missing_bytes:
        raise CorruptionError(path, file.tell(), _TOO_SHORT)
    return b"".join(pieces)


def reject_trailing_bytes(file: BinaryIO, path: str) -> None:
    """Raise CorruptionError if a file has bytes after the current position."""
    if file.read(1):
        raise CorruptionError(path, file.tell() - 1, "there are bytes after the last record that the header counts")
