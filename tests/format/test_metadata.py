"""The files next to the shards, and the order in which they are written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import google_crc32c
import pytest

from tpudata.errors import DatasetError
from tpudata.format import Feature, Manifest, Shard, Source, Split, open_dataset, write_metadata

LABEL = Feature("label", "int64", "int64", num_classes=2)


def manifest(labels: int | None) -> Manifest:
    splits = {"train": Split((Shard("train-00000-of-00001.tfrecord", 1, 20, 0),))}
    return Manifest("raw", splits, (LABEL,), Source("memory", 1, 1, "0"), "tests", labels=labels)


def test_writes_one_label_per_line(tmp_path: Path) -> None:
    write_metadata(str(tmp_path), manifest(2), ["cat", "hündchen, klein"])
    assert (tmp_path / "labels.txt").read_text("utf-8") == "cat\nhündchen, klein\n"
    assert open_dataset(str(tmp_path)).labels() == ("cat", "hündchen, klein")
    crc32c = google_crc32c.value((tmp_path / "labels.txt").read_bytes())
    due = dataclasses.replace(manifest(2), labels_crc32c=crc32c, tfds="tpudata:1.0.0")
    assert open_dataset(str(tmp_path)).manifest == due


def test_writes_no_labels_file_without_classes(tmp_path: Path) -> None:
    write_metadata(str(tmp_path), manifest(None))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset_info.json", "features.json", "manifest.json"]
    assert open_dataset(str(tmp_path)).labels() is None


@pytest.mark.parametrize(("count", "labels"), [(2, ["a"]), (2, None), (None, ["a"])])
def test_rejects_labels_that_contradict_the_manifest(
    tmp_path: Path, count: int | None, labels: list[str] | None
) -> None:
    with pytest.raises(DatasetError, match="class names for a manifest of"):
        write_metadata(str(tmp_path), manifest(count), labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "two\nlines", "a\u2028b", "end\r"])
def test_rejects_names_that_are_empty_or_have_line_breaks(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="is empty or has a line break"):
        write_metadata(str(tmp_path), manifest(2), ["a", name])
    assert list(tmp_path.iterdir()) == []


def test_writes_the_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = Path.replace

    def record(self: Path, target: Path) -> Path:
        order.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", record)
    write_metadata(str(tmp_path), manifest(2), ["a", "b"])
    assert order[-1] == "manifest.json"
    assert sorted(order) == sorted(path.name for path in tmp_path.iterdir())
