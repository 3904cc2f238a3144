"""Opening a tar, compressed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

from beam_jobs.compression.files import open_decompressed, read_head
from beam_jobs.references.ranged_file import file_size, open_ranged
from beam_jobs.sources.tars.members import BLOCK, is_tar_header


def is_tar(path: str) -> bool:
    """Return whether the first bytes of a file, decompressed if it is compressed, are those of a tar."""
    return is_tar_header(read_head(path, BLOCK))


@contextlib.contextmanager
def open_tar(path: str, compression: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a tar as a file that can seek forward.

    Args:
        path: path of the tar.
        compression: its compression, such as `"gzip"`; empty if it is not compressed.

    Yields:
        (file, its size in bytes); None for the size of a compressed tar.
    """
    if compression:
        with open_decompressed(path, compression) as file:
            yield file, None
    else:
        size = file_size(path)
        with open_ranged(path, size) as ranged:
            yield ranged, size
