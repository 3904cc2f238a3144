"""Inputs of a shard are read in its order, each with its own bytes, and with few reads.

Test inputs are far below the limit of one read, and no command counts reads, so tests call the function directly.
"""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import PieceSizes, read_packs
from beam_jobs.references.reference import Reference
from tests.helpers.stores import serve_gs
from tpudata.errors import BadRecordError
from tpudata.storage import storage_for


def packed(references: list[Reference], size: int = 100) -> list[Pack]:
    parts = [references[start : start + size] for start in range(0, len(references), size)]
    return [Pack.of(part, np.zeros(len(part), np.uint64)) for part in parts]


def shard(folder: str, seed: int, files: int, runs: int) -> tuple[list[Reference], dict[str, bytes]]:
    """Files of runs of documents, each sorted by where a shard needs them; some are of other shards. And whole files."""
    choose = random.Random(seed)
    placed, wanted = [], {}
    for number in range(files):
        path, data = storage_for(folder).join(folder, str(number)), b""
        for _ in range(runs):
            for place in sorted(choose.random() for _ in range(choose.randrange(1, 30))):
                document = choose.randbytes(choose.randrange(1, 60))
                if choose.random() < 0.7:
                    key = f"{number}:{len(data)}"
                    original, spool = ("other", path) if number % 2 else (path, "")
                    reference = Reference(key, "train", (), original, len(data), len(document), spool=spool)
                    placed.append((place, reference))
                    wanted[key] = document
                data += document
        with storage_for(path).create(path) as file:
            file.write(data)
        placed.append((choose.random(), Reference(f"whole {number}", "train", (), path, -1, len(data))))
        wanted[f"whole {number}"] = data
    return [reference for _, reference in sorted(placed)], wanted


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 50, 1 << 14]))
def test_reads_each_reference_with_its_bytes(tmp_path: Path, seed: int, files: int, runs: int, least: int) -> None:
    references, wanted = shard(str(tmp_path), seed, files, runs)
    found = list(read_packs(packed(references), piece_sizes=PieceSizes(max_held_bytes=1000, min_piece_bytes=least)))
    assert [reference for reference, _ in found] == references
    assert [data for _, data in found] == [wanted[reference.key] for reference in references]


def test_reads_neighbours_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(0).randbytes(730)
    (tmp_path / "0").write_bytes(data)
    neighbours = [Reference(str(n), "train", (), str(tmp_path / "0"), n, 1) for n in range(len(data))]
    reads = []
    storage = type(storage_for(str(tmp_path)))
    read_range = storage.read_range

    def counted(self: object, path: str, offset: int, length: int, **given: bool) -> bytes:
        reads.append((offset, length))
        return read_range(self, path, offset, length, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "read_range", counted)
    assert b"".join(some for _, some in read_packs(packed(neighbours)) if isinstance(some, bytes)) == data
    assert reads == [(0, len(data))]
    # What lies between is read with them, if it is little.
    for gap, count in ((2, 1), (1 << 15, 3)):
        (tmp_path / "0").write_bytes(b"".join(b"doc" + bytes(gap) for _ in range(3)))
        apart = [Reference(str(n), "train", (), str(tmp_path / "0"), n * (3 + gap), 3) for n in range(3)]
        reads.clear()
        assert [some for _, some in read_packs(packed(apart))] == [b"doc"] * 3
        assert len(reads) == count
    (tmp_path / "0").write_bytes(data)
    # No more than a piece of each run is held, so a long run takes several.
    reads.clear()
    assert len(
        list(read_packs(packed(neighbours), piece_sizes=PieceSizes(max_held_bytes=1, min_piece_bytes=100)))
    ) == len(data)
    assert [length for _, length in reads] == [*[100] * 7, 30]


def test_rejects_references_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    path = str(tmp_path / "a")
    references = [
        Reference("a:0", "train", (), path, 0, 3),
        Reference("a:3", "train", (), path, 3, 9),
        Reference("a", "train", (), path, -1, 5),
        Reference("b", "train", (), str(tmp_path / "b"), -1, 5),
        Reference("b:0", "train", (), str(tmp_path / "b"), 0, 5),
    ]
    good, *bad = (data for _, data in read_packs(packed(references)))
    assert good == b"abc"
    reasons = [error.reason for error in bad if isinstance(error, BadRecordError)]
    assert reasons[0] == "cut: 3 of 9 bytes"
    assert reasons[1] == "changed during the run: 6 bytes, 5 when it was listed"
    assert all(reason.startswith("could not be read: ") for reason in reasons[2:])
    assert len(reasons) == 4


def test_reads_packs_of_an_object_store() -> None:
    with serve_gs():
        references, wanted = shard("gs://b/in", 5, 2, 2)
        found = list(
            read_packs(
                packed(references), piece_sizes=PieceSizes(max_held_bytes=100, min_piece_bytes=50, max_ahead_bytes=200)
            )
        )
    assert found == [(one, wanted[one.key]) for one in references]


def test_a_file_takes_its_size_in_memory_once(tmp_path: Path) -> None:
    path, size = tmp_path / "x", 32 << 20
    path.write_bytes(bytes(size))
    tracemalloc.start()
    try:
        ((_, data),) = read_packs(packed([Reference("x", "train", (), str(path), -1, size)]))
        assert isinstance(data, bytes)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * size
    finally:
        tracemalloc.stop()
