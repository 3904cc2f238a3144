"""Scan of files without an index for the offsets of lines or of records of one length.

For lines, every byte is read. The result takes 8 bytes per record. `tpudata.format.tfrecord.frame_scan` does the same for TFRecord
files.
"""

from __future__ import annotations

import numpy as np

from tpudata.console.tables import counted
from tpudata.errors import CorruptionError
from tpudata.format.tfrecord.frame_scan import GZIP_MAGIC, Offsets
from tpudata.storage import Entry, storage_for

# Size of one read.
_READ_BYTES = 4 << 20


def line_offsets(file: Entry, skip_lines: int) -> Offsets:
    """Return the begins of a text file's lines after the skipped ones, and the end of the last one: int64 [lines + 1].

    Raises:
        CorruptionError: the file is compressed, or shorter than it was when it was listed.
    """
    parts = [np.zeros(1, np.int64)]
    offset = 0
    while offset < file.size:
        data = storage_for(file.path).read_range(file.path, offset, min(_READ_BYTES, file.size - offset))
        if not data:
            raise CorruptionError(file.path, offset, f"the file ends here, and had {file.size} bytes before")
        if offset == 0 and data.startswith(GZIP_MAGIC):
            raise CorruptionError(file.path, 0, "the file is compressed, and has no lines. Unpack it with gunzip.")
        parts.append(offset + 1 + np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")))
        offset += len(data)
    offsets = np.concatenate(parts)
    if offsets[-1] < file.size:
        offsets = np.append(offsets, file.size)
    return offsets[min(skip_lines, len(offsets) - 1) :]


def fixed_offsets(file: Entry, record_bytes: int, header_bytes: int, footer_bytes: int) -> Offsets:
    """Return the begins of a file's records of one length, and the end of the last one: int64 [records + 1].

    Raises:
        CorruptionError: the bytes between header and footer are not a whole number of records.
    """
    body = file.size - header_bytes - footer_bytes
    records, over = divmod(body, record_bytes)
    if body < 0 or over:
        raise CorruptionError(
            file.path,
            max(0, file.size - footer_bytes - over if body >= 0 else file.size),
            f"the file has {file.size} bytes: {header_bytes} of header, {footer_bytes} of footer and"
            f" {counted(max(0, records), 'record')} of {record_bytes} leave {over if body >= 0 else body}."
            " Name the right sizes, or unpack a file that is compressed.",
        )
    return header_bytes + record_bytes * np.arange(records + 1)
