"""Files that hold TFRecords and cannot be read, told from files that hold none."""

from __future__ import annotations

import contextlib
import struct
import zlib

from tpudata.format.tfrecord.framing import HEADER_BYTES, masked_crc32c
from tpudata.storage import storage_for

HEADER = struct.Struct("<QI")
_ZLIB = b"\x78"
# Bytes of a file that are searched for a record after a damaged one.
_LOOKED_AT = 1 << 20
# The higher bytes of a record's length, after four others.
_ZEROS = bytes(4)


def is_header(data: bytes) -> bool:
    """Return whether 12 bytes are the header of a record: a length and its checksum."""
    return len(data) == HEADER_BYTES and masked_crc32c(data[:8]) == HEADER.unpack(data)[1]


def unread_records(path: str, size: int) -> str:
    """Return why the TFRecords of a file that begins with no sound header cannot be read, with the fix; nothing if it has none.

    Args:
        path: path of the file.
        size: its size in bytes.
    """
    head = storage_for(path).read_range(path, 0, min(size, _LOOKED_AT))
    # The first two bytes of ZLIB are a multiple of 31 (RFC 1950).
    if head[:1] == _ZLIB and int.from_bytes(head[:2], "big") % 31 == 0:
        with contextlib.suppress(zlib.error):
            if is_header(zlib.decompressobj().decompress(head, HEADER_BYTES)):
                return (
                    "its TFRecords are compressed with ZLIB, which is not read; write them again with compression_type='GZIP', or"
                    " without compression"
                )
    if _has_header(head):
        return (
            "the first record is damaged: the checksum of its length does not fit, so that no record of the file can be located;"
            " restore the file"
        )
    return ""


def _has_header(data: bytes) -> bool:
    place = data.find(_ZEROS, 5)
    while place >= 0:
        if is_header(data[place - 4 : place + 8]):
            return True
        place = data.find(_ZEROS, place + 1)
    return False
