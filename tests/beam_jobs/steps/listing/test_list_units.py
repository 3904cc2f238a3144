"""Listing the units of a source in ranges changes no record.

Tests make storages whose ranges are small, because a conversion divides only folders of many thousand files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tpudata
from scripts.fake_gcs import FakeGcs
from tests.beam_jobs.sources.inputs import jpeg, write_files
from tests.helpers.stores import serve_gs
from tpudata.storage import LocalStorage, folder_ranges, select
from tpudata.storage.gcs import GcsStorage


def files(root: Path) -> Path:
    return write_files(
        root, {f"{name}/{n % 3}/{n}.jpg": jpeg(n) for n in range(75) for name in ("cat", "dog")} | {"cat/.x": b""}
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("shuffle", "unlabelled"), [(True, False), (False, True)])
def test_listing_in_ranges_changes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, unlabelled: bool
) -> None:
    source = files(tmp_path / "in")

    def convert(name: str) -> dict[str, bytes]:
        tpudata.convert_images(source, tmp_path / name, shard_bytes=8_000, shuffle=shuffle, unlabelled=unlabelled)
        return contents(tmp_path / name)

    whole = convert("whole")
    # More ranges than come one by one.
    monkeypatch.setattr(select, "_LOCAL", LocalStorage(range_names=1))
    assert sum(1 for _ in folder_ranges(f"{source}/cat/0", deep=True)) == 25
    cut = convert("cut")
    if shuffle:
        assert cut == whole
    else:
        # Where a unit ends, a shard may be cut: the records and their order are the same.
        assert b"".join(cut[name] for name in sorted(cut) if name.endswith(".tfrecord")) == b"".join(
            whole[name] for name in sorted(whole) if name.endswith(".tfrecord")
        )


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs(page=8) as server:
        yield server


# tests/beam_jobs/test_text.py has a text in a bucket.
@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["flat", "folders", pytest.param("text", marks=pytest.mark.matrix)])
def test_listing_a_bucket_in_ranges_gives_the_bytes_of_a_disk(
    tmp_path: Path, store: FakeGcs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given: dict[str, bytes]
    if kind == "text":
        given = {f"in/{n % 5}/{n}.txt": f"document {n}\nand another {n}\n".encode() for n in range(60)}
    else:
        given = {f"in/{'' if kind == 'flat' else f'{n % 2}/'}img_{n:04d}.jpg": jpeg(n) for n in range(60)}
    write_files(tmp_path, given)
    for name, data in given.items():
        store.put("b", name, data)
    storage = GcsStorage(range_names=6)
    monkeypatch.setattr(select, "_make_storage", {"gs": storage}.get)
    assert sum(1 for _ in folder_ranges("gs://b/in", deep=True)) > 3
    results: list[Any] = []
    for source, output in ((f"{tmp_path}/in", f"{tmp_path}/a"), ("gs://b/in", f"{tmp_path}/b")):
        if kind == "text":
            tpudata.convert_text(source, output, num_shards=3)
        else:
            tpudata.convert_images(source, output, num_shards=3, unlabelled=kind == "flat")
        found = contents(Path(output))
        results.append({name: data for name, data in found.items() if name != "manifest.json"})
    assert results[0] == results[1]
