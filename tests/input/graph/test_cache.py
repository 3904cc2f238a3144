"""Where decoded records are kept, and that they are not read twice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tests.datasets import Written
from tpudata import CorruptionError, DatasetError, UsageError, make_input_fn, open_dataset
from tpudata.format import Shard, Split
from tpudata.input.dataset.fields import select_fields
from tpudata.input.graph import cache as cache_module
from tpudata.input.graph.cache import CachePlan, free_memory, plan_cache


def labels(dataset: tf.data.Dataset) -> list[int]:
    return [int(label) for _, batch in dataset.as_numpy_iterator() for label in batch]


@pytest.fixture
def copy(digits: Written, tmp_path: Path) -> str:
    return str(shutil.copytree(digits.path, tmp_path / "copy"))


def remove_shards(folder: str) -> None:
    for path in Path(folder).glob("*.tfrecord"):
        path.unlink()


@pytest.mark.parametrize("cache", [True, "auto"])
def test_in_memory_the_second_dataset_reads_no_file(copy: str, digits: Written, cache: Any) -> None:
    input_fn = make_input_fn(copy, "test", training=False, cache=cache)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]
    remove_shards(copy)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]


def test_without_a_cache_the_files_are_read_again(copy: str) -> None:
    input_fn = make_input_fn(copy, "test", training=False)
    labels(input_fn({"batch_size": 101}))
    remove_shards(copy)
    with pytest.raises(tf.errors.OpError, match=r"StorageError: .*could not be read"):
        labels(input_fn({"batch_size": 101}))


def test_on_disk_another_input_fn_reads_the_cache_alone(copy: str, digits: Written, tmp_path: Path) -> None:
    folder = str(tmp_path / "not" / "there yet")
    assert (
        labels(make_input_fn(copy, "test", training=False, cache=folder)({"batch_size": 101})) == digits.labels["test"]
    )
    second = make_input_fn(Path(copy), "test", training=False, cache=Path(folder))
    train = make_input_fn(copy, "test", training=True, cache=folder)
    remove_shards(copy)
    assert labels(second({"batch_size": 101})) == digits.labels["test"]
    got = labels(train({"batch_size": 101}).take(2))
    assert sorted(got[:101]) == sorted(got[101:]) == sorted(digits.labels["test"])


def test_on_disk_other_records_or_sizes_have_other_files(digits: Written, tmp_path: Path) -> None:
    def files(split: str, **options: Any) -> set[str]:
        labels(make_input_fn(digits.path, split, training=False, cache=str(tmp_path), **options)({"batch_size": 101}))
        return {path.name for path in tmp_path.glob("*-????????????????.json")}

    assert len(files("test")) == 1
    assert len(files("test")) == 1
    assert len(files("train")) == 2
    assert len(files("test", image_size=(4, 4))) == 3
    assert len(files("test", extra_features=("image/filename",))) == 4
    assert len(files("test", dtype="float32")) == 4  # Cast after the cache.


@pytest.mark.parametrize(
    ("pattern", "left", "extra"),
    [("*.0.npy", 0.0, ()), ("*.strings", 0.9, ("image/filename",)), ("*.1.npy", 0.9, ())],
)
def test_on_disk_a_cut_file_is_named_before_training(
    digits: Written, tmp_path: Path, pattern: str, left: float, extra: tuple[str, ...]
) -> None:
    def make() -> Any:
        return make_input_fn(digits.path, "test", training=False, extra_features=extra, cache=tmp_path)

    labels(make()({"batch_size": 100}))
    make()
    (path,) = tmp_path.glob(pattern)
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data))])
    with pytest.raises(CorruptionError, match=rf"{path} at byte .*{len(data)} when it.*Delete the folder {tmp_path};"):
        make()
    for file in tmp_path.iterdir():
        file.unlink()
    assert labels(make()({"batch_size": 101})) == digits.labels["test"]


def test_on_disk_a_missing_file_is_named(digits: Written, tmp_path: Path) -> None:
    input_fn = make_input_fn(digits.path, "test", training=True, cache=tmp_path)
    labels(input_fn({"batch_size": 50}).take(9))
    (path,) = tmp_path.glob("*.1.npy")
    path.unlink()
    with pytest.raises(DatasetError, match=rf"{path} is missing\. Delete the folder {tmp_path};"):
        make_input_fn(digits.path, "test", training=True, cache=tmp_path)
    (note,) = tmp_path.glob("*.json")
    note.write_bytes(b"[1")
    with pytest.raises(DatasetError, match=rf"{note} cannot be read\. Delete the folder"):
        make_input_fn(digits.path, "test", training=True, cache=tmp_path)


@pytest.mark.parametrize(
    "change", [(b"\x93NUMPY", b"xNUMPYx"), (b"(101,", b"(1e2,"), (b"(101,)", b"(99,) "), (b"(101,)", b"((101,")]
)
def test_on_disk_an_array_that_is_none_is_named(digits: Written, tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    labels(make_input_fn(digits.path, "test", training=False, cache=tmp_path)({"batch_size": 50}))
    (path,) = tmp_path.glob("*.1.npy")
    path.write_bytes(path.read_bytes().replace(*change)[: path.stat().st_size])
    with pytest.raises(
        DatasetError, match=rf"cache='{tmp_path}': an array cannot be read.*Delete the folder {tmp_path};"
    ):
        make_input_fn(digits.path, "test", training=True, cache=tmp_path)


_FULL_DISK = """
import sys
import numpy as np
from tpudata import StorageError
from tpudata.input.graph.cache import CachePlan

images = np.zeros((100, 1000), np.uint8)
strings = np.array([b"x" * 1000] * 100, object)
for column in (images, strings):
    try:
        CachePlan(sys.argv[1], "train", 1000).fill({"a": column} for _ in range(10))
    except StorageError as error:
        print(error)
"""


def test_a_disk_that_becomes_full_is_an_error(tmp_path: Path) -> None:
    mounted = "mount -t tmpfs -o size=300k tmpfs"
    unshared = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*unshared, f"{mounted} {tmp_path}"], check=False).returncode:
        pytest.skip("this system does not let its users mount a small disk of their own")
    line = f'{mounted} {tmp_path} && "$0" -c "$1" {tmp_path} && ls {tmp_path}'
    done = subprocess.run(
        [*unshared, line, sys.executable, _FULL_DISK], stdout=subprocess.PIPE, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == [f"cache='{tmp_path}' could not be written: No space left on device."] * 2


def test_on_disk_a_cache_without_its_note_is_made_again(copy: str, digits: Written, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    labels(make_input_fn(copy, "test", training=False, cache=folder)({"batch_size": 101}))
    next(folder.glob("*.json")).unlink()
    input_fn = make_input_fn(copy, "test", training=False, cache=folder)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]
    remove_shards(copy)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]


def test_on_disk_a_place_that_is_no_folder_is_refused(digits: Written, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, file in (("/dev/null/x", "/dev/null"), (tmp_path / "file", tmp_path / "file")):
        with pytest.raises(UsageError, match=rf"cache='{path}': {file} is not a folder"):
            make_input_fn(digits.path, "test", training=True, cache=path)


def test_what_does_not_fit_is_refused_with_numbers(digits: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "free_memory", lambda: 20_000)
    # 300 records of 64 + 4 bytes.
    with pytest.raises(UsageError, match=r"take 2\.04e-05 GB, more than 80% of the free memory of 2e-05 GB"):
        make_input_fn(digits.path, "train", training=True, cache=True)
    make_input_fn(digits.path, "test", training=True, cache=True)
    make_input_fn(digits.path, "train", training=True, cache="auto")


def test_what_does_not_fit_the_disk_is_refused_with_numbers(
    digits: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50))
    with pytest.raises(UsageError, match=r"2\.04e-05 GB, and 5e-08 GB are free there"):
        make_input_fn(digits.path, "train", training=True, cache=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_auto_takes_a_quarter_of_the_free_memory(digits: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = open_dataset(digits.path).manifest
    fields = select_fields(manifest)
    split = manifest.split("train")
    size = 300 * (64 + 4)
    monkeypatch.setattr(cache_module, "free_memory", lambda: 4 * size)
    plan = plan_cache("auto", "train", split, fields)
    assert isinstance(plan, CachePlan)
    assert plan.folder is None
    monkeypatch.setattr(cache_module, "free_memory", lambda: 4 * size - 4)
    assert plan_cache("auto", "train", split, fields) is None
    assert plan_cache(True, "train", split, fields) is not None
    # A system that does not tell: "auto" stays out, True is the user's word.
    monkeypatch.setattr(cache_module, "free_memory", lambda: None)
    assert plan_cache("auto", "train", split, fields) is None
    assert plan_cache(True, "train", split, fields) is not None
    assert plan_cache(False, "train", split, fields) is None


def test_strings_are_estimated_by_the_records_that_hold_them(digits: Written) -> None:
    manifest = open_dataset(digits.path).manifest
    split = Split((Shard("a-00000-of-00001.tfrecord", 10, 5000, 0),))
    assert select_fields(manifest).record_bytes(split) == 64 + 4
    assert select_fields(manifest, extra=("image/filename",)).record_bytes(split) == 64 + 4 + 500


def test_free_memory_is_the_least_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       8000 kB\nMemAvailable:   5000 kB\n")
    monkeypatch.setattr(cache_module, "_MEMINFO", meminfo)
    monkeypatch.setattr(cache_module, "_CGROUP", tmp_path)
    assert free_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert free_memory() == 2000
    (tmp_path / "memory.current").write_text("4000\n")
    assert free_memory() == 0
    meminfo.unlink()
    assert free_memory() == 0


def test_free_memory_of_this_machine_is_plausible() -> None:
    free = free_memory()
    assert free is None or 0 <= free < 2**50
