"""TFRecord framing: the layout of records in a file, with their checksums.

A TFRecord file is a sequence of records, each:

    bytes    what
    8        length of the data, uint64 little-endian
    4        masked CRC-32C of these 8 bytes, uint32 little-endian
    length   the data
    4        masked CRC-32C of the data, uint32 little-endian

where masked(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2**32. Source: TensorFlow, `tensorflow/core/lib/io/record_writer.h`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.storage import storage_for

LENGTH_BYTES, HEADER_BYTES = 8, 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
# End of messages about a compressed file: their offsets are in the unpacked stream, as in TensorFlow.
UNPACKED = " (the offset counts unpacked bytes)"
MASK_DELTA = 0xA282EAD8
# The checksum takes an array without a copy.
Bytes: TypeAlias = "bytes | npt.NDArray[np.uint8]"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
# If the size of the file is unknown, a record is read in pieces of this size: a damaged length must not allocate memory.
_READ_BYTES = 1 << 24
# The limit of a protocol buffer, and so of every reader. A compressed file of 3 MB may hold a record of 3 GB.
MAX_RECORD_BYTES = (1 << 31) - 1


def pack_header(size: int) -> bytes:
    """Return the header of a record whose data has `size` bytes."""
    length = _LENGTH.pack(size)
    return length + pack_checksum(google_crc32c.value(length))


def pack_checksum(crc: int) -> bytes:
    """Return a CRC-32C as TFRecord stores it, masked."""
    return _CRC.pack(_mask(crc))


def pack_frame(data: bytes) -> bytes:
    """Return a record with its header and footer, as stored in a file."""
    return b"".join((pack_header(len(data)), data, pack_checksum(google_crc32c.value(data))))


def unpack_header(header: bytes) -> int | None:
    """Return the length of the data in a record's header; None if the length does not match its checksum."""
    length: int
    length, crc = _HEADER.unpack(header)
    return length if _mask(google_crc32c.value(header[:LENGTH_BYTES])) == crc else None


def matches_checksum(data: Bytes, footer: bytes) -> bool:
    """Return whether the data of a record matches the checksum in its footer."""
    return footer == pack_checksum(google_crc32c.value(data))


def find_damage(frame: Bytes) -> str | None:
    """Return a description of a record's damage, None if it is intact; `frame` is the whole record with header and footer."""
    return _find_mismatch(bytes(frame[:HEADER_BYTES]), frame[HEADER_BYTES:-FOOTER_BYTES], bytes(frame[-FOOTER_BYTES:]))


def unpack_frame(frame: bytes, path: str, offset: int) -> bytes:
    """Return the data of a record, whose length and checksums are compared first.

    Args:
        frame: the record with its header and footer.
        path: path of the file, for messages.
        offset: byte offset of the record in the file, for messages.

    Raises:
        CorruptionError: the length or a checksum differs.
    """
    data = frame[HEADER_BYTES:-FOOTER_BYTES]
    damage = _find_mismatch(frame[:HEADER_BYTES], data, frame[-FOOTER_BYTES:])
    if damage:
        raise CorruptionError(path, offset, damage)
    return data


def _find_mismatch(header: bytes, data: Bytes, footer: bytes) -> str | None:
    """Return how the parts of a record contradict each other, in words; None if they do not."""
    # None if the header's checksum does not match: then it also differs from the length of the data.
    length = unpack_header(header)
    if length != len(data):
        return "the length of a record does not match its checksum or the index"
    if not matches_checksum(data, footer):
        return f"the checksum of a record of {length} bytes does not match"
    return None


def read_records(path: str, compression: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of every record of a TFRecord file, each checksum checked.

    Args:
        path: path of the file.
        compression: None, or `"gzip"`: offsets then count unpacked bytes, and damage may be reported before the last records in
            front of it are yielded.

    Raises:
        CorruptionError: a checksum is wrong, the file ends inside a record, or the file cannot be unpacked.
        StorageError: the file cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    # Without an entry, opening the file raises the error.
    file_bytes = entry.size if entry else 0
    with storage.open(path) as file:
        if compression is None:
            yield from _read_open_records(path, file, file_bytes)
        else:
            yield from _unpack_records(path, file)


def _unpack_records(path: str, compressed_file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset before compression, data) of the records of an open file that is compressed with gzip.

    Raises:
        CorruptionError: a checksum is wrong, the file ends inside a record, or the file cannot be unpacked.
    """
    next_offset = 0
    try:
        with gzip.GzipFile(fileobj=compressed_file, mode="rb") as file:
            for offset, data in _read_open_records(path, file, file_bytes=None):
                next_offset = offset + len(data) + FRAME_BYTES
                yield offset, data
    except CorruptionError as error:
        raise CorruptionError(path, error.offset, error.reason + UNPACKED) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptionError(path, next_offset, f"the gzip stream is cut or damaged: {error}{UNPACKED}") from None


def _read_open_records(
    path: str, file: BinaryIO | gzip.GzipFile, file_bytes: int | None
) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of the records of an open file; `file_bytes` is its size, or None if that is unknown.

    Raises:
        CorruptionError: a checksum is wrong, the file ends inside a record, or a record of a compressed file is too large.
    """
    offset = 0
    while header := file.read(HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise CorruptionError(
                path, offset, f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)"
            )
        length = unpack_header(header)
        if length is None:
            raise CorruptionError(path, offset, "the checksum of a record's length does not match")
        if file_bytes is not None and length > file_bytes - offset - FRAME_BYTES:
            raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
        if file_bytes is None and length > MAX_RECORD_BYTES:
            raise CorruptionError(
                path, offset, f"a record of {length:,} bytes is too large (expected at most {MAX_RECORD_BYTES:,})"
            )
        data = file.read(length) if length <= _READ_BYTES else b"".join(_read_in_pieces(file, length))
        footer = file.read(FOOTER_BYTES)
        if len(data) + len(footer) < length + FOOTER_BYTES:
            raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
        if not matches_checksum(data, footer):
            raise CorruptionError(path, offset, f"the checksum of a record of {length} bytes does not match")
        yield offset, data
        offset += length + FRAME_BYTES


def _read_in_pieces(file: BinaryIO | gzip.GzipFile, length: int) -> Iterator[bytes]:
    """Yield the next `length` bytes of a file, or fewer at its end: a damaged length must not allocate memory."""
    remaining_bytes = length
    while remaining_bytes > 0 and (piece := file.read(min(remaining_bytes, _READ_BYTES))):
        yield piece
        remaining_bytes -= len(piece)


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF
