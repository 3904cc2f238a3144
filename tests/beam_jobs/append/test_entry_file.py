"""Look-up of inputs that a dataset already has, compared with a plain dictionary; on disk and in a bucket.

The look-up file is cut into buckets; only datasets of some million records fill several, so here buckets are small.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.append.entries import Standing, make_entries, make_line_entry, mark_rejected
from beam_jobs.append.entry_file import EntryFile, write_entries
from beam_jobs.output.rejects import format_reject_line
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference
from scripts.fake_gcs import FakeGcs
from tests.helpers.stores import serve_gs
from tpudata.errors import BadRecordError, StorageError
from tpudata.format.shards.keys import ENTRY


def reference(key: str, size: int = 1, label: str = "cat", split: str = "train") -> Reference:
    return Reference(key, split, (label,), f"/in/{key}", -1, size)


def make_entry(one: Reference, *, rejected: bool = False) -> bytes:
    """The entry that a shard has of an input."""
    entries = make_entries([Pack.of([one], np.zeros(1, np.uint64))])
    if rejected:
        mark_rejected(entries, [0])
    return entries.tobytes()


def find_standings(entries: Sequence[bytes], inputs: Sequence[Reference | BadRecordError]) -> list[Standing]:
    """What a dataset with these entries has of inputs."""
    with tempfile.TemporaryDirectory() as folder:
        write_entries([np.array(entries, ENTRY)], len(entries), f"{folder}/known")
        return EntryFile(f"{folder}/known").find_standings(inputs)


INPUTS = st.lists(st.tuples(st.integers(0, 30).map(str), st.integers(0, 3), st.booleans()), max_size=40)


@given(INPUTS, INPUTS)
def test_standings_match_a_dictionary(old: list[tuple[str, int, bool]], new: list[tuple[str, int, bool]]) -> None:
    records = {key: size for key, size, rejected in old if not rejected}
    # A dataset has one record of a key; of what was rejected there may be several states next to it.
    rejects = {(key, size) for key, size, rejected in old if rejected and records.get(key) != size}
    entries = [make_entry(reference(key, size)) for key, size in records.items()]
    entries += [make_entry(reference(key, size), rejected=True) for key, size in rejects]
    expected = []
    for key, size, _ in new:
        if records.get(key) == size:
            expected.append(Standing.RECORD)
        elif (key, size) in rejects:
            expected.append(Standing.REJECTED)
        else:
            expected.append(Standing.CHANGED if key in records else Standing.NEW)
    assert find_standings(entries, [reference(key, size) for key, size, _ in new]) == expected


def test_recognizes_a_moved_rejection_by_its_name() -> None:
    listed, other = BadRecordError("/in/list", "it is gone", 7, "a.jpg"), BadRecordError("/in/list", "it is gone", 7)
    moved = BadRecordError("/in/other", "it is gone", 9, "a.jpg")
    entries = [make_line_entry(format_reject_line(listed)), make_entry(reference("b"))]
    found = find_standings(entries, [other, listed, reference("b"), moved])
    assert found == [Standing.NEW, Standing.REJECTED, Standing.RECORD, Standing.REJECTED]


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs("bucket") as server:
        yield server


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_finds_entries_in_files_of_many_buckets(count: int, tmp_path: Path, store: FakeGcs) -> None:
    references = [reference(f"{number}") for number in range(count)]
    entries = list(map(make_entry, references))
    parts = [np.array(entries[start : start + 70], ENTRY) for start in range(0, count, 70)]
    for path in (f"{tmp_path}/known", "gs://bucket/known"):
        write_entries(parts, count, path, max_bucket_entries=100, entries_per_sort=500)
        file = EntryFile(path, buckets_per_fetch=4, buckets_per_search=7)
        new = [reference(f"new {number}") for number in range(300)]
        found = file.find_standings([*itertools.chain(*zip(references, new, strict=False)), *new])
        assert found == [*[Standing.RECORD, Standing.NEW] * min(count, 300), *[Standing.NEW] * 300]
        # Again, of buckets that were fetched already.
        assert file.find_standings(references) == [Standing.RECORD] * count
    stored = np.frombuffer((tmp_path / "known").read_bytes()[8 + 8 * (len(file._first_entries)) :], ENTRY)
    assert stored.tobytes() == np.sort(np.array(entries, ENTRY)).tobytes()


def test_fetches_buckets_concurrently_and_once(store: FakeGcs) -> None:
    references = [reference(f"{number}") for number in range(3_000)]
    entries = np.array(list(map(make_entry, references)), ENTRY)
    write_entries([entries], len(references), "gs://bucket/known", max_bucket_entries=10)
    file = EntryFile("gs://bucket/known", buckets_per_fetch=8)
    store.latency, store.most_in_flight = 0.02, 0
    assert file.find_standings(references) == [Standing.RECORD] * len(references)
    assert store.most_in_flight > 4
    store.requests.clear()
    assert file.find_standings(references[:100]) == [Standing.RECORD] * 100
    assert not store.requests["read"]


def test_rejects_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "known"
    write_entries([np.array([make_entry(reference("a"))], ENTRY)], 1, str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="could not be read: truncated"):
        EntryFile(str(path))


def test_a_file_truncated_while_open_raises_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "known"
    references = [reference(f"{number}") for number in range(2_000)]
    write_entries([np.array(list(map(make_entry, references)), ENTRY)], len(references), str(path))
    file = EntryFile(str(path))
    assert file.find_standings(references) == [Standing.RECORD] * len(references)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StorageError, match="could not be read: truncated"):
        file.find_standings(references)
