"""Conversions from and to Google Cloud Storage, a small store on loopback."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.images import run
from beam_jobs.reading import read_references
from beam_jobs.reference import WHOLE_FILE, Reference
from tests.beam_jobs.test_images import digests, make_pictures
from tests.fake_gcs import FakeGcs
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, StorageError
from tpudata.format import open_dataset
from tpudata.storage import storage_for
from tpudata.storage._select import _google


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"), 120)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> Iterator[FakeGcs]:
    with FakeGcs(page=50) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        # The client of the test before knows another server.
        _google.cache_clear()
        server.bucket("b")
        for path in pictures.rglob("*.*"):
            server.put("b", f"in/{path.relative_to(pictures)}", path.read_bytes())
        yield server
        _google.cache_clear()


def stored(store: FakeGcs, folder: Path, prefix: str) -> dict[str, str]:
    """Digests of the objects below a prefix, written into a folder."""
    for name, item in store.buckets["b"].items():
        if name.startswith(f"{prefix}/"):
            path = folder / name.removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.data)
    return digests(folder)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_conversion_there_has_the_bytes_of_one_on_disk(
    store: FakeGcs, pictures: Path, tmp_path: Path, workers: str
) -> None:
    flags = ["--shard-size", "20kB", "--split", "train=0.8,validation=0.2"]
    assert run(["--input", str(pictures), "--output", str(tmp_path / "local"), *flags]) == 0
    assert run(["--input", "gs://b/in", "--output", "gs://b/out", "--workers", workers, *flags]) == 0
    local, there = digests(tmp_path / "local"), stored(store, tmp_path / "there", "out")
    # The manifest names the input.
    assert {name for name in local if local[name] != there.get(name)} == {"manifest.json"}
    assert local.keys() == there.keys()
    assert main(["verify", "gs://b/out"]) == 0


def test_resume_append_and_overwrite_there(store: FakeGcs, tmp_path: Path) -> None:
    argv = ["--input", "gs://b/in", "--output", "gs://b/out", "--shard-size", "20kB"]
    assert run(argv) == 0
    whole = stored(store, tmp_path / "whole", "out")
    with pytest.raises(OutputError, match="holds a dataset"):
        run(argv)
    objects = store.buckets["b"]
    shards = sorted(name for name in objects if name.startswith("out/train-"))
    generations = {name: objects[name].generation for name in shards}
    for name in ("out/manifest.json", shards[1]):
        del objects[name]
    assert run([*argv, "--resume"]) == 0
    assert stored(store, tmp_path / "resumed", "out") == whole
    assert [name for name in shards if objects[name].generation != generations[name]] == [shards[1]]
    store.put("b", "in/cat/new.jpg", objects["in/cat/000.jpg"].data)
    assert run([*argv, "--append"]) == 0
    assert "out/train-a001-00000-of-00001.tfrecord" in objects
    assert main(["verify", "gs://b/out"]) == 0
    assert run([*argv, "--overwrite"]) == 0
    assert not [name for name in objects if "a001" in name or "/." in name]
    assert main(["verify", "gs://b/out"]) == 0


def references(store: FakeGcs) -> list[Reference]:
    return [
        Reference(name, "train", (), f"gs://b/{name}", WHOLE_FILE, len(item.data))
        for name, item in store.buckets["b"].items()
    ]


def test_many_objects_are_read_at_once_and_come_in_order(store: FakeGcs) -> None:
    storage_for("gs://b/in").stat("gs://b/in")
    store.latency = 0.05
    due = references(store)
    started = time.monotonic()
    found = list(read_references(due))
    together = time.monotonic() - started
    assert found == [(reference, store.buckets["b"][reference.key].data) for reference in due]
    # 120 requests of 50 ms one by one are 6 s; no more is asserted than that they overlap.
    assert together < 0.05 * len(due) / 2


def test_an_object_that_went_is_that_record_s_error(store: FakeGcs) -> None:
    due = references(store)
    gone = due[70]
    del store.buckets["b"][gone.key]
    failed = [(reference, data) for reference, data in read_references(due) if isinstance(data, BadRecordError)]
    assert [reference for reference, _ in failed] == [gone]
    assert "it is not there (404)" in str(failed[0][1])


def test_objects_stored_with_an_encoding_are_refused_by_name(store: FakeGcs, tmp_path: Path) -> None:
    store.put("b", "in/cat/000.jpg", gzip.compress(store.buckets["b"]["in/cat/000.jpg"].data), encoding="gzip")
    argv = ["--input", "gs://b/in", "--output", str(tmp_path / "out"), "--num-shards=2"]
    with pytest.raises(BadRecordError, match=r"gs://b/in/cat/000\.jpg: refused: .*stored with Content-Encoding: gzip"):
        run(argv)
    assert run([*argv, "--on-bad-record=skip", "--resume"]) == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.records, sum(manifest.rejected.values())) == (119, 1)
    store.put("b", "list.csv", gzip.compress(b"path,label\nin/cat/003.png,cat\n"), encoding="gzip")
    with pytest.raises(
        StorageError, match=r"gs://b/list\.csv could not be read: it is stored with Content-Encoding: gzip"
    ):
        run(["--input", "gs://b/list.csv", "--output", str(tmp_path / "other")])
