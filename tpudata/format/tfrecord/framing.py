"""TFRecord framing: how records stand in a file, with their checksums.

A TFRecord file is its records one after the other, each:

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
from typing import BinaryIO

import google_crc32c

from tpudata.errors import CorruptionError
from tpudata.storage import storage_for

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
# Said of every offset in a compressed file: as TensorFlow has it, it is one in the stream of records.
UNPACKED = " (the offset counts unpacked bytes)"
MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
# A length is not believed for more than this at a time: where the file's size is not known, the data must be there first.
_READ_BYTES = 1 << 24


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C that TFRecord stores, as an unsigned 32-bit integer."""
    return masked(google_crc32c.value(data))


def masked(crc: int) -> int:
    """Return a CRC-32C as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def read_records(path: str, compression: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of every record of a TFRecord file, each checksum checked.

    Args:
        path: the file.
        compression: None, or `"gzip"`: offsets then count unpacked bytes, and damage may show some records before it.

    Raises:
        CorruptionError: a checksum does not fit, the file ends inside a record, or it cannot be unpacked.
        StorageError: the file cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    size = entry.size if entry else 0
    with storage.open(path) as file:
        if compression is None:
            yield from _records(path, file, size)
        else:
            yield from _unpacked_records(path, file)


def _unpacked_records(path: str, packed: BinaryIO) -> Iterator[tuple[int, bytes]]:
    end = 0
    try:
        with gzip.GzipFile(fileobj=packed, mode="rb") as file:
            for offset, data in _records(path, file, None):
                end = offset + len(data) + FRAME_BYTES
                yield offset, data
    except CorruptionError as error:
        raise CorruptionError(path, error.offset, error.reason + UNPACKED) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptionError(path, end, f"the gzip stream is cut or damaged: {error}{UNPACKED}") from None


def _records(path: str, file: BinaryIO | gzip.GzipFile, size: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the records of an open file of that size, or of one whose size shows at its end."""
    offset = 0
    while header := file.read(HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise CorruptionError(
                path, offset, f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)"
            )
        length, crc = _HEADER.unpack(header)
        if masked_crc32c(header[: _LENGTH.size]) != crc:
            raise CorruptionError(path, offset, "the checksum of a record's length does not fit")
        if size is not None and length > size - offset - FRAME_BYTES:
            raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
        data = file.read(length) if length <= _READ_BYTES else b"".join(_read_long(file, length))
        footer = file.read(FOOTER_BYTES)
        if len(data) + len(footer) < length + FOOTER_BYTES:
            raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
        if masked_crc32c(data) != _CRC.unpack(footer)[0]:
            raise CorruptionError(path, offset, f"the checksum of a record of {length} bytes does not fit")
        yield offset, data
        offset += length + FRAME_BYTES


def _read_long(file: BinaryIO | gzip.GzipFile, length: int) -> Iterator[bytes]:
    while length > 0 and (part := file.read(min(length, _READ_BYTES))):
        yield part
        length -= len(part)
