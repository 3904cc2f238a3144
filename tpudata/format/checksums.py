"""Checksums of a dataset's own files: CRC-32C at the end of a binary file, and in a line of a JSON file."""

from __future__ import annotations

import re
import struct

import google_crc32c

# Bytes of a checksum at the end of a file.
CHECKSUM_BYTES = 4
# Value of "checksum" in a JSON file whose checksum is computed.
NO_CHECKSUM = "00000000"
# The line in the outermost object, which is indented by one space: JSON has no line breaks inside strings.
_LINE = re.compile(rb'(?<=\n "checksum": ")[0-9a-f]{8}(?=",\n)')
_CRC = struct.Struct("<I")


def append_checksum(body: bytes) -> bytes:
    """Return the bytes of a binary file, followed by their checksum."""
    return body + _CRC.pack(google_crc32c.value(body))


def split_checksum(data: bytes) -> tuple[bytes, bool]:
    """Return the bytes of a binary file before its checksum, and whether the checksum matches them."""
    body, crc = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    return body, _CRC.pack(google_crc32c.value(body)) == crc


def insert_checksum(data: bytes) -> bytes:
    """Return a JSON file with its checksum in place of NO_CHECKSUM, the value of "checksum".

    The file must be indented by one space, with each key of the outermost object on a line.
    """
    return _LINE.sub(b"%08x" % google_crc32c.value(data), data, count=1)


def checksum_fits(data: bytes) -> bool | None:
    """Return whether the checksum in a JSON file matches its content; None if the file has no checksum."""
    match = _LINE.search(data)
    if match is None:
        return None
    zeroed = data[: match.start()] + NO_CHECKSUM.encode() + data[match.end() :]
    return bool(google_crc32c.value(zeroed) == int(match[0], 16))
