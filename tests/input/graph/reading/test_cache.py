"""Caches of decoded records: their place, and that records are read once.

The share of memory that a cache may take is private: no test knows how much is free.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, write_dataset, write_images
from tpudata import DatasetError, StorageError, UsageError, as_numpy, make_input_fn, open_dataset
from tpudata.cli import main
from tpudata.format import Feature
from tpudata.input.graph.caches.choose_cache import choose_memory_cache
from tpudata.input.graph.reading.free_memory import measure_free_memory


def labels(dataset: tf.data.Dataset) -> list[int]:
    return [int(label) for _, batch in dataset.as_numpy_iterator() for label in batch]


@pytest.fixture
def copy(digits: Written, tmp_path: Path) -> str:
    return str(shutil.copytree(digits.path, tmp_path / "copy"))


def remove_shards(folder: str) -> None:
    for path in Path(folder).glob("*.tfrecord"):
        path.unlink()


@pytest.mark.parametrize("cache", [True, "auto"])
def test_a_second_dataset_reads_the_cache_in_memory(copy: str, digits: Written, cache: Any) -> None:
    input_fn = make_input_fn(copy, "test", training=False, cache=cache)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]
    remove_shards(copy)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]


def test_reads_the_files_again_without_a_cache(copy: str) -> None:
    input_fn = make_input_fn(copy, "test", training=False)
    labels(input_fn({"batch_size": 101}))
    remove_shards(copy)
    with pytest.raises(StorageError, match=r"\.tfrecord could not be read: No such file"):
        list(as_numpy(input_fn, 101))


def test_another_input_fn_reads_only_the_cache_on_disk(copy: str, digits: Written, tmp_path: Path) -> None:
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


def test_a_cache_on_disk_separates_splits_sizes_and_features(digits: Written, tmp_path: Path) -> None:
    def files(split: str, **options: Any) -> set[str]:
        labels(make_input_fn(digits.path, split, training=False, cache=str(tmp_path), **options)({"batch_size": 101}))
        return {path.parent.name for path in tmp_path.glob("*-????????????????/manifest.json")}

    assert len(files("test")) == 1
    assert len(files("test")) == 1
    assert len(files("train")) == 2
    assert len(files("test", images=tpudata.Images(size=(4, 4)))) == 3
    assert len(files("test", extra_features=("image/filename",))) == 4
    assert len(files("test", images=tpudata.Images(dtype="float32"))) == 4  # Cast after the cache.


def test_a_cache_on_disk_separates_datasets_of_one_size(tmp_path: Path) -> None:
    for value in (1, 2):
        pixels = [np.full((4, 4, 1), value, np.uint8)] * 6
        path = str(tmp_path / f"data{value}")
        write_images(path, {"train": pixels}, {"train": [value] * 6}, shape=(4, 4, 1), layout="raw")
        input_fn = make_input_fn(path, "train", training=False, cache=tmp_path / "cache")
        assert labels(input_fn({"batch_size": 6})) == [value] * 6


def cached(digits: Written, folder: Path, training: bool = False) -> Any:
    return make_input_fn(digits.path, "test", training=training, extra_features=("image/filename",), cache=folder)


def test_a_cache_on_disk_is_a_dataset(digits: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels(cached(digits, tmp_path)({"batch_size": 100}))
    (folder,) = tmp_path.iterdir()
    assert main(["verify", str(folder)]) == 0
    assert open_dataset(str(folder)).manifest.split("records").records == len(digits.labels["test"])
    assert capsys.readouterr().out.startswith(f"{folder}: no defects")


@pytest.mark.parametrize("left", [0.0, 0.9])
def test_names_a_truncated_cache_file_before_training(digits: Written, tmp_path: Path, left: float) -> None:
    labels(cached(digits, tmp_path)({"batch_size": 100}))
    cached(digits, tmp_path)
    path = next(tmp_path.glob("*/*.tfrecord"))
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data))])
    with pytest.raises(
        DatasetError, match=rf"{path} at byte .* says {len(data)}\..*Delete the folder {path.parent}; it is made"
    ):
        cached(digits, tmp_path)
    shutil.rmtree(path.parent)
    assert labels(cached(digits, tmp_path)({"batch_size": 101})) == digits.labels["test"]


@pytest.mark.parametrize("pattern", ["*/*.tfrecord", "*/index/*.index"])
def test_names_a_missing_cache_file(digits: Written, tmp_path: Path, pattern: str) -> None:
    labels(cached(digits, tmp_path, training=True)({"batch_size": 50}).take(9))
    path = next(tmp_path.glob(pattern))
    path.unlink()
    with pytest.raises(DatasetError, match=rf"{path}\b.*Delete the folder {tmp_path}/test-\w+;"):
        cached(digits, tmp_path, training=True)


@pytest.mark.parametrize("pattern", ["*/manifest.json", "*/index/*.index"])
def test_names_a_damaged_cache_file(digits: Written, tmp_path: Path, pattern: str) -> None:
    labels(cached(digits, tmp_path)({"batch_size": 50}))
    path = next(tmp_path.glob(pattern))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatasetError, match=rf"{path}\b.*Delete the folder {tmp_path}/test-\w+;"):
        cached(digits, tmp_path, training=True)


def test_reports_a_damaged_record_of_a_cache_with_its_fix(digits: Written, tmp_path: Path) -> None:
    labels(cached(digits, tmp_path)({"batch_size": 100}))
    path = next(tmp_path.glob("*/*.tfrecord"))
    data = path.read_bytes()
    path.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    fix = f"Delete the folder {path.parent}; it is made again."
    with pytest.raises(DatasetError, match=rf"{path} at byte 0: .*\. {fix}"):
        list(as_numpy(cached(digits, tmp_path), 100))
    assert main(["verify", str(path.parent), "--quarantine"]) == 0
    with pytest.raises(DatasetError, match=rf"cache=.*{path.parent} has damaged records in quarantine\. {fix}"):
        cached(digits, tmp_path)
    shutil.rmtree(path.parent)
    assert labels(cached(digits, tmp_path)({"batch_size": 101})) == digits.labels["test"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 24 kB, mounted for another process and seen through it."""
    mounted = f"mount -t tmpfs -o size=24k tmpfs {tmp_path}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{mounted} && echo mounted && cat"]
    if not shutil.which("unshare"):
        pytest.skip("this system has no unshare")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"mounted\n":
            pytest.skip("this system does not let its users mount a small disk")
        yield Path(f"/proc/{process.pid}/root{tmp_path}")
        process.stdin.close()


def test_reports_a_full_disk_in_one_line(digits: Written, small_disk: Path) -> None:
    input_fn = make_input_fn(digits.path, "train", training=False, cache=small_disk)
    with pytest.raises(
        StorageError,
        match=rf"^{small_disk}/train-\w+/records-.* could not be written: No space left on device\.[^\n]*$",
    ):
        list(input_fn({"batch_size": 100}))


def test_rebuilds_a_cache_without_a_manifest(copy: str, digits: Written, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    labels(make_input_fn(copy, "test", training=False, cache=folder)({"batch_size": 101}))
    next(folder.glob("*/manifest.json")).unlink()
    input_fn = make_input_fn(copy, "test", training=False, cache=folder)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]
    remove_shards(copy)
    assert labels(input_fn({"batch_size": 101})) == digits.labels["test"]


def test_rejects_a_cache_path_that_is_not_a_folder(digits: Written, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, file in (("/dev/null/x", "/dev/null"), (tmp_path / "file", tmp_path / "file")):
        with pytest.raises(UsageError, match=rf"cache='{path}': {file} is not a folder"):
            make_input_fn(digits.path, "test", training=True, cache=path)


def test_rejects_a_dataset_as_the_folder_of_a_cache(copy: str) -> None:
    files = sorted(Path(copy).rglob("*"))
    with pytest.raises(UsageError, match=r"it is the folder of a dataset\. Pass another one, such as .*\.cache\."):
        make_input_fn(copy, "train", training=True, cache=copy)
    assert sorted(Path(copy).rglob("*")) == files


def test_rejects_a_cache_larger_than_free_memory(tmp_path: Path) -> None:
    # Its features say that a record has 8 GiB.
    features = [Feature("x", "bytes", "float64", (1 << 30,), "raw")]
    path = write_dataset(str(tmp_path), {"train": [{"x": b""}] * 1000}, features, layout="", shards=1)
    with pytest.raises(UsageError, match=r"take 8\.59e\+03 GB, more than 40% of the free memory of [\d.]+ GB"):
        make_input_fn(path, "train", training=True, cache=True)
    make_input_fn(path, "train", training=True, cache="auto")


def test_rejects_a_cache_larger_than_the_disk(digits: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50))
    with pytest.raises(UsageError, match=r"2\.04e-05 GB, and 5e-08 GB are free there"):
        make_input_fn(digits.path, "train", training=True, cache=str(tmp_path / "cache"))
    # A string is estimated by the size of a stored record.
    stored = sum(path.stat().st_size for path in Path(digits.path).glob("train-*"))
    size = 300 * (64 + 4 + stored // 300)
    options: Any = {"cache": str(tmp_path / "cache"), "extra_features": ("image/filename",)}
    with pytest.raises(UsageError, match=rf"take {size / 1e9:.3g} GB, and"):
        make_input_fn(digits.path, "train", training=True, **options)
    assert not (tmp_path / "cache").exists()


def test_counts_strings_of_compressed_shards_before_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50))
    feature = Feature("text", "bytes", "string", encoding="utf8")
    records = [{"text": b"a" * 100_000}] * 10
    for compression in (None, "gzip"):
        path = str(tmp_path / str(compression))
        write_dataset(path, {"train": records}, [feature], layout="text", shards=1, compression=compression)
        with pytest.raises(UsageError, match=r"take 0\.001 GB, and 5e-08 GB are free there"):
            make_input_fn(path, "train", training=True, cache=str(tmp_path / "cache"))


def test_auto_caches_up_to_a_quarter_of_free_memory() -> None:
    def is_cached(free: int | None, *, is_optional: bool) -> bool:
        return choose_memory_cache("train", 100, free, is_optional=is_optional).is_in_memory

    assert is_cached(400, is_optional=True)
    assert not is_cached(399, is_optional=True)
    assert is_cached(250, is_optional=False)
    with pytest.raises(UsageError, match="more than 40%"):
        is_cached(249, is_optional=False)
    # If free memory is unknown, "auto" does not cache, and True does.
    assert not is_cached(None, is_optional=True)
    assert is_cached(None, is_optional=False)


def test_free_memory_is_the_minimum_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       8000 kB\nMemAvailable:   5000 kB\n")
    assert measure_free_memory(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert measure_free_memory(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert measure_free_memory(meminfo, tmp_path) == 2000
    (tmp_path / "memory.current").write_text("4000\n")
    assert measure_free_memory(meminfo, tmp_path) == 0
    meminfo.unlink()
    assert measure_free_memory(meminfo, tmp_path) == 0


def test_free_memory_of_this_machine_is_plausible() -> None:
    free = measure_free_memory()
    assert free is None or 0 <= free < 2**50
