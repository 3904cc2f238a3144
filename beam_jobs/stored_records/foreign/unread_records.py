"""Files with TFRecords that cannot be read, as opposed to files without TFRecords."""

from __future__ import annotations

from tpudata.format.tfrecord.frame_scan import is_header, is_zlib
from tpudata.storage import storage_for

# Bytes of a file that are searched for a record after a damaged one.
_MAX_SEARCHED_BYTES = 1 << 20
# Of the 8 bytes of a record's length, the higher 4 are zeros in records below 4 GiB.
_ZEROS = bytes(4)


def describe_unread_records(path: str, size: int) -> str:
    """Return why the TFRecords of a file cannot be read, with the fix; empty if the file seems to have no TFRecords.

    Args:
        path: path of a file that does not begin with an intact header of a record.
        size: size of the file in bytes.
    """
    head = storage_for(path).read_range(path, 0, min(size, _MAX_SEARCHED_BYTES))
    if is_zlib(head):
        return (
            "its TFRecords are compressed with ZLIB, which is not read; write them again with compression_type='GZIP', or without"
            " compression"
        )
    if _has_header(head):
        return (
            "the first record is damaged: the checksum of its length does not match, so that no record of the file can be located;"
            " restore the file"
        )
    return ""


def _has_header(data: bytes) -> bool:
    """Return whether bytes contain the header of a record after the first byte, found by the zeros in its length."""
    # A header that begins at byte 1 has its zeros at byte 5.
    position = data.find(_ZEROS, 5)
    while position >= 0:
        # 8 bytes of length, the last 4 being the zeros, and 4 of checksum.
        if is_header(data[position - 4 : position + 8]):
            return True
        position = data.find(_ZEROS, position + 1)
    return False
