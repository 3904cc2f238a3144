"""Records as they stand in an uncompressed TFRecord file."""

from __future__ import annotations

import io

from tpudata.format import RecordWriter


def add_frame(data: bytes) -> bytes:
    """Return a record with its length and checksums."""
    file = io.BytesIO()
    writer = RecordWriter(file, 1)
    writer.write(data)
    writer.finish()
    return file.getvalue()
