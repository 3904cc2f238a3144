"""Appending to a dataset whose manifest was changed, with its checksum made right."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from beam_jobs.images import run
from tests.beam_jobs.append.samples import Sample
from tests.helpers.hostile import write_json
from tpudata.errors import TpudataError
from tpudata.format import verify


def change(sample: Sample, *keys: str, value: Any) -> None:
    path = sample.output / "manifest.json"
    manifest = json.loads(path.read_bytes())
    inner = manifest
    for key in keys[:-1]:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    inner[keys[-1]] = value
    write_json(path, manifest)


def append(sample: Sample) -> int:
    # Not those of FLAGS, which the manifest has.
    skip = ("--on-bad-record=skip", "--max-bad-records=50%")
    return run(["--input", str(sample.source), "--output", str(sample.output), "--append", *skip])


@pytest.mark.parametrize("splits", [{}, {"train": {"shards": [], "decoded_bytes": 0}}])
def test_adds_everything_to_a_dataset_without_shards(sample: Sample, splits: dict[str, Any]) -> None:
    before = sample.records()
    for path in sample.output.glob("*.tfrecord"):
        path.unlink()
    for name in ("index", "rejects"):
        shutil.rmtree(sample.output / name)
    change(sample, "splits", value=splits)
    change(sample, "rejected", value={})
    change(sample, "rejects", value=[])
    assert append(sample) == 0
    assert sample.records() == before
    assert list(verify(str(sample.output))) == []


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("options", "seed"), "x", "options.seed is 'x', not a whole number"),
        (("options", "shuffle"), 1, "options.shuffle is 1, not true or false"),
        (("options", "shard_bytes"), 0, "options.shard_bytes is 0"),
        (("options", "split"), [1], r"options.split is \[1\]"),
        (("options", "split"), {"train": 1}, r"options.split\['train'\] is 1"),
        (("options", "split"), {"train": "x"}, "not a share"),
        (("options", "split_order"), ["a"], "options.split_order and options.split differ"),
        (("options", "column_types"), [1], "options.column_types"),
        (("options", "label_offset"), "1", "options.label_offset"),
        (("source", "fingerprint"), "xyz", "the fingerprint of the source is not as it was written"),
    ],
    ids=str,
)
def test_rejects_options_of_another_type(sample: Sample, keys: tuple[str, ...], value: Any, message: str) -> None:
    change(sample, *keys, value=value)
    with pytest.raises(TpudataError, match=rf"{sample.output}/manifest.json: .*{message}") as caught:
        append(sample)
    assert "\n" not in str(caught.value)


def test_rejects_record_counts_that_the_files_do_not_have(sample: Sample) -> None:
    shard = ("splits", "train", "shards", "0")
    change(sample, *shard, "records", value=10**15)
    with pytest.raises(TpudataError, match="too many records for its size"):
        append(sample)
    change(sample, *shard, "bytes", value=10**17)
    with pytest.raises(TpudataError, match="the keys of another shard"):
        append(sample)


def test_ignores_a_wrong_count_of_rejects(sample: Sample) -> None:
    change(sample, "rejected", value={"odd": 10**15})
    before = sample.records()
    assert append(sample) == 0
    assert sample.records() == before
