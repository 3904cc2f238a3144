"""Opening a tar, compressed or not, and what is in front of any file."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from beam_jobs.references.ranged_file import open_ranged
from beam_jobs.sources.tars.members import BLOCK, is_tar_header
from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import storage_for

GZIP_MAGIC = b"\x1f\x8b"


def file_size(path: str) -> int:
    """Size of a file; SourceError where there is none."""
    found = storage_for(path).stat(path)
    if found is None or found.is_folder:
        raise SourceError(f"{path} is not a file that is there.")
    return found.size


def is_gzip(path: str) -> bool:
    """Return whether a file is compressed with gzip, by its first bytes."""
    return storage_for(path).read_range(path, 0, len(GZIP_MAGIC)) == GZIP_MAGIC


def first_bytes(path: str, length: int = BLOCK) -> bytes:
    """Return the first bytes of a file, unpacked where it is compressed with gzip."""
    if not is_gzip(path):
        return storage_for(path).read_range(path, 0, length)
    with open_gzip(path) as file:
        return file.read(length)


def is_tar(path: str) -> bool:
    """Return whether a file is a tar, compressed with gzip or not, by its first bytes."""
    return is_tar_header(first_bytes(path))


@contextlib.contextmanager
def open_gzip(path: str) -> Iterator[BinaryIO]:
    """Open a gzip file, unpacked as it is read from start to end; it seeks forward.

    Raises:
        CorruptionError: from any read inside the context: the file is cut or damaged. Its offset counts unpacked bytes.
    """
    with storage_for(path).open(path) as packed, gzip.GzipFile(fileobj=packed) as file:
        try:
            yield cast(BinaryIO, file)
        except EOFError:
            raise CorruptionError(
                path, file.tell(), "the gzip stream is cut (the offset counts unpacked bytes)"
            ) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise CorruptionError(
                path, file.tell(), f"the gzip stream is damaged: {error} (the offset counts unpacked bytes)"
            ) from None


@contextlib.contextmanager
def open_tar(path: str, compressed: bool) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a tar as a file that seeks forward; also yield where it ends, if that is known before reading."""
    if compressed:
        with open_gzip(path) as file:
            yield file, None
    else:
        size = file_size(path)
        with open_ranged(path, size) as ranged:
            yield ranged, size
