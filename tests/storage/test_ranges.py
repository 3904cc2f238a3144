"""Ranges of a folder: together they cover its files in order, on a disk and in a bucket.

One test cuts more names than a test can write files.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tracemalloc
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.fake_gcs import FakeGcs
from tests.helpers.stores import serve_gs
from tpudata.errors import StorageError
from tpudata.storage import Range, files_below, folder_ranges, storage_for
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.local.listing import cut_names


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs(page=8) as server:
        yield server


def below(ranges: Iterable[Range], skip: str = ".hidden") -> list[list[str]]:
    """The paths of the files of each range."""
    return [
        [f"{name}{'/' * entry.is_folder}" for entry, name in files_below(files, lambda name: name == skip)]
        for files in ranges
    ]


def ranges_of(folder: str, max_range_names: int) -> list[Range]:
    """The ranges of a folder of a bucket, as `folder_ranges` has them, for a smaller number of names in each."""
    cuts = GcsStorage(range_names=max_range_names).cuts(folder, deep=True)
    return [Range(folder, start or "", stop) for start, stop in itertools.pairwise(["", *cuts, None])]


# Characters around `/`, and outside of the plane in which UTF-16 and UTF-8 order names alike.
NAMES = st.text("ab-/0.\uffff\U0001f600\U0010ffff", min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(NAMES, max_size=60), st.booleans())
def test_ranges_of_a_bucket_cover_all_its_names(store: FakeGcs, names: set[str], deep: bool) -> None:
    names = {name for name in names if "" not in name.split("/")}
    store.bucket("all").clear()
    for name in names:
        store.put("all", f"in/{name}", b"")
    store.put("all", "in/", b"")
    storage = GcsStorage(range_names=3)
    cuts = storage.cuts("gs://all/in", deep=deep)
    found = [
        list(storage.scan("gs://all/in", start=start or "", stop=stop, deep=deep))
        for start, stop in itertools.pairwise(["", *cuts, None])
    ]
    assert cuts == storage.cuts("gs://all/in", deep=deep)
    paths = [entry.path.removeprefix("gs://all/in/") + "/" * entry.is_folder for part in found for entry in part]
    tops = {f"{name.split('/')[0]}/" if "/" in name else name for name in names}
    assert paths == sorted(names if deep else tops)
    # An object that all others begin with cannot be distinguished by a character.
    assert max(map(len, found), default=0) <= 16 or len(tops) < 16


def test_cuts_a_large_bucket_into_even_ranges(store: FakeGcs) -> None:
    store.page = 50
    for number in range(1500):
        store.put("b", f"flat/img_{number:08d}.jpg", b"")
    found = below(ranges_of("gs://b/flat", 32))
    assert list(itertools.chain(*found)) == [f"img_{number:08d}.jpg" for number in range(1500)]
    assert len(found) >= 30
    assert max(map(len, found)) <= 50


def test_cuts_names_of_a_large_alphabet_with_few_requests(store: FakeGcs) -> None:
    store.page = 1000
    names = [f"{chr(0x4E00 + 7 * (number // 4))}{number}" for number in range(4000)]
    for name in names:
        store.put("b", f"in/{name}", b"")
    store.requests.clear()
    found = below(ranges_of("gs://b/in", 200))
    requests = store.requests["list"] - len(found)
    assert list(itertools.chain(*found)) == sorted(names)
    # The names have 1,000 first characters.
    assert 20 <= len(found) <= 256
    assert max(map(len, found)) <= 400
    assert requests < 500


def test_lists_a_small_folder_as_one_range_in_one_request(store: FakeGcs) -> None:
    for number in range(5):
        store.put("b", f"in/{number}", b"")
    store.requests.clear()
    assert list(folder_ranges("gs://b/in", deep=True)) == [Range("gs://b/in")]
    assert store.requests["list"] == 1


def test_limit_returns_the_first_names(store: FakeGcs, tmp_path: Path) -> None:
    for name in ("b", "a/x", "c", "a.", "a0"):
        store.put("b", f"in/{name}", b"")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    store.put("b", "in/", b"")
    for folder in ("gs://b/in", str(tmp_path)):
        for limit in range(6):
            names = [entry.name for entry in storage_for(folder).scan(folder, limit=limit)]
            assert names == ["a.", "a", "a0", "b", "c"][:limit]
        assert [entry.name for entry in storage_for(folder).scan(folder, start="a/", stop="b")] == ["a", "a0"]
        with pytest.raises(StorageError, match="could not be listed"):
            list(storage_for(folder).scan(f"{folder}/none", limit=1))


FILES = ("a/1", "a/.hidden/2", "a/.hidden/3", "a/b/4", "a.5", "c", ".hidden/6", ".hidden/d/7")


def test_lists_skipped_folders_once(store: FakeGcs, tmp_path: Path) -> None:
    for name in FILES:
        store.put("b", f"in/{name}", b"")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for folder in ("gs://b/in", str(tmp_path)):
        assert below(folder_ranges(folder, deep=True)) == [[".hidden/", "a.5", "a/.hidden/", "a/1", "a/b/4", "c"]]


def test_lists_a_skipped_folder_once_across_ranges(store: FakeGcs) -> None:
    names = [
        "0",
        *(f".hidden/{number:03d}" for number in range(60)),
        *(f"a/.hidden/{number:03d}" for number in range(60)),
    ]
    for name in [*names, "a/.hidden/"]:
        store.put("b", f"in/{name}", b"")
    found = below(ranges_of("gs://b/in", 8))
    assert len(found) > 10
    assert list(itertools.chain(*found)) == [".hidden/", "0", "a/.hidden/"]
    # A range may begin in a skipped folder, and be the first that has a file of it.
    for start, count in (("a/.hidden/", 1), ("a/.hidden/0", 1), ("a/.hidden/000", 1), ("a/.hidden/001", 0)):
        assert len(list(files_below(Range("gs://b/in", start), lambda name: name == ".hidden"))) == count


def test_cuts_a_large_local_folder_alike_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:04d}.jpg" for number in range(1000)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "0500").mkdir()
    (tmp_path / "0500" / "x").write_bytes(b"")
    folder = str(tmp_path)
    cuts = cut_names(folder, max_range_names=100, sample_size=300)
    found = below(Range(folder, start or "", stop) for start, stop in itertools.pairwise(["", *cuts, None]))
    assert list(itertools.chain(*found)) == sorted([*names, "0500/x"])
    assert len(found) == 11
    assert max(map(len, found)) < 150
    with os.scandir(folder) as entries:
        in_order = sorted(entries, key=lambda entry: entry.name)
    for order in (in_order, in_order[::-1]):
        monkeypatch.setattr(os, "scandir", lambda _, order=order: contextlib.nullcontext(order))
        assert cut_names(folder, max_range_names=100, sample_size=300) == cuts


def test_cutting_a_folder_takes_less_than_3_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of 75,000 files takes seconds to write.
    entries = (types.SimpleNamespace(name=f"{n:012d}.jpg", is_dir=lambda: False) for n in range(75_000))
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(entries))
    tracemalloc.start()
    cuts = cut_names("anywhere", max_range_names=1 << 14, sample_size=1 << 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cuts) == 4
    # 75,000 names would take 5 MB.
    assert peak < 3e6
