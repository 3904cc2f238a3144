"""Opening a tar, compressed or not, and what is in front of any file."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import BinaryIO, cast

from beam_jobs.compression.recognition import COMPRESSED_SUFFIXES, find_compression
from beam_jobs.references.ranged_file import open_ranged
from beam_jobs.sources.tars.members import BLOCK, is_tar_header
from beam_jobs.text_files.streams import DecompressedFile
from tpudata.errors import SourceError
from tpudata.storage import storage_for

_MAGIC_BYTES = 16


def file_size(path: str) -> int:
    """Return the size of a file; raise SourceError if it is missing."""
    found = storage_for(path).stat(path)
    if found is None or found.is_folder:
        raise SourceError(
            f"{path} is not there, or is a folder (expected a file). Restore it, or remove it from the input."
        )
    return found.size


def packing(path: str) -> str:
    """Return how a file is compressed, by its first bytes: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or nothing."""
    return find_compression(storage_for(path).read_range(path, 0, _MAGIC_BYTES))


def unpacked_name(name: str) -> str:
    """Return the name of what is in a compressed file: `a.tar` of `a.tar.gz`."""
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def first_bytes(path: str, length: int = BLOCK) -> bytes:
    """Return the first bytes of a file, unpacked if it is compressed."""
    if not packing(path):
        return storage_for(path).read_range(path, 0, length)
    with open_packed(path) as file:
        return file.read(length)


def is_tar(path: str) -> bool:
    """Return whether a file is a tar, compressed or not, by its first bytes."""
    return is_tar_header(first_bytes(path))


@contextlib.contextmanager
def open_packed(path: str) -> Iterator[BinaryIO]:
    """Yield a compressed file, unpacked as it is read from start to end; it seeks forward.

    Raises:
        CorruptionError: from any read inside the context: the file is cut or damaged. Its offset counts unpacked bytes.
    """
    with contextlib.closing(DecompressedFile(path, packing(path))) as raw:
        yield cast(BinaryIO, io.BufferedReader(raw, 1 << 20))


@contextlib.contextmanager
def open_tar(path: str, compressed: bool) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a tar as a file that seeks forward; also yield where it ends, if that is known before reading."""
    if compressed:
        with open_packed(path) as file:
            yield file, None
    else:
        size = file_size(path)
        with open_ranged(path, size) as ranged:
            yield ranged, size
