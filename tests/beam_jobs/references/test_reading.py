"""From references to bytes: what is rejected, and before how much of it is read."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from beam_jobs.references.reading import MOST_INPUT_BYTES, read_reference
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tpudata.errors import BadRecordError


def reference(path: Path, size: int, offset: int = WHOLE_FILE) -> Reference:
    return Reference("x", "train", (), str(path), offset, size)


@pytest.mark.parametrize("size", [0, 6, 9, 11])
def test_a_file_of_another_size_than_it_was_listed_with_is_rejected(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_reference(reference(path, 10)) == b"0123456789"
    with pytest.raises(BadRecordError, match=f"changed during the run: 10 bytes, {size} when it was listed"):
        read_reference(reference(path, size))


@pytest.mark.parametrize(("offset", "where"), [(WHOLE_FILE, "x: rejected"), (512, "at byte 512: rejected")])
def test_what_is_too_large_is_not_read(tmp_path: Path, offset: int, where: str) -> None:
    path, size = tmp_path / "x", MOST_INPUT_BYTES + 1
    with path.open("wb") as file:
        file.truncate(size + 512)
    tracemalloc.start()
    try:
        with pytest.raises(BadRecordError, match=rf"{where}: too large: {size} bytes; an input has 1073741824 at most"):
            read_reference(reference(path, size, offset))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_takes_its_size_in_memory_once(tmp_path: Path) -> None:
    path, size = tmp_path / "x", 32 << 20
    path.write_bytes(bytes(size))
    tracemalloc.start()
    try:
        assert len(read_reference(reference(path, size))) == size
        assert tracemalloc.get_traced_memory()[1] < 1.1 * size
    finally:
        tracemalloc.stop()
