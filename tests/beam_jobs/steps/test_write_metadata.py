"""The last step of a conversion: the files that it removes, and the datasets that it must not complete.

Another run that completes a dataset at the same moment is a race, so tests call the step directly.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.converter import InputConverter, ShardContext
from beam_jobs.options import ConvertOptions
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.plan import Plan, SplitPlan
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.shards.write_shards import ShardResult
from beam_jobs.steps.write_metadata import WriteMetadata
from tpudata.errors import OutputError
from tpudata.format import Feature, Manifest

PLAN = Plan({"test": SplitPlan(5, 1, (7,)), "train": SplitPlan(10, 1, (3,))}, 15, 1500, "f" * 32)


@dataclasses.dataclass
class Counted:
    """A summary."""

    decoded_bytes: int = 0

    def merge(self, other: Counted) -> None:
        self.decoded_bytes += other.decoded_bytes

    def to_json(self) -> dict[str, Any]:
        return {"decoded": self.decoded_bytes}


@dataclasses.dataclass(frozen=True)
class Labelled(InputConverter):
    """A converter, as far as the last step needs it."""

    record_overhead = 0

    def new_summary(self) -> Counted:
        return Counted()

    def summary_from_json(self, value: dict[str, Any]) -> Counted:
        return Counted(value["decoded"])

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: Counted) -> bytes:
        raise NotImplementedError

    def features(self, summary: Counted, labels: Labels) -> tuple[Feature, ...]:
        del summary
        return (Feature("label", "int64", "int64", num_classes=len(labels.names)),)


def result(
    split: str,
    number: int,
    records: int = 5,
    rejected: dict[str, int] | None = None,
    decoded: int = 100,
    **converted: int,
) -> tuple[Any, ...]:
    said = json.dumps({"decoded": decoded, "converted": converted})
    name = f"{split}-{number:05d}-of-00002.tfrecord"
    return tuple(ShardResult(split, name, records, records * 20, number, said, rejected or {}))


ALL = [result("train", 0), result("train", 1), result("test", 0, 3), result("test", 1, 2)]


def finished(
    output: Path,
    results: list[tuple[Any, ...]],
    *,
    rejected: tuple[dict[str, int], ...] = (),
    seed: int = 0,
    **said: Any,
) -> Manifest:
    options = ConvertOptions("in", str(output), seed=seed, **said)
    step = WriteMetadata(DatasetSpec(options, Labelled(), "own", True, options.deciding_options()))
    context, counts = (
        ShardContext(Labels(("cat", "dog"))),
        [InputCounts(4), *(InputCounts(rejected=counts) for counts in rejected)],
    )
    (manifest,) = step.process(b"", results, PLAN, context, InputCounts.sum(counts))
    return manifest


def test_removes_unfinished_files_and_keeps_others(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    for name in (".tpudata-spool-1", "index/.tpudata-x", "index/mine", "mine"):
        (tmp_path / name).write_bytes(b"x")
    finished(tmp_path, ALL)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"index/mine", "mine"} <= left
    assert not [name for name in left if ".tpudata" in name]


def test_a_repeated_step_returns_the_same_manifest(tmp_path: Path) -> None:
    assert finished(tmp_path, ALL) == finished(tmp_path, ALL)


def test_keeps_a_dataset_that_another_run_completed_meanwhile(tmp_path: Path) -> None:
    finished(tmp_path, ALL)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        OutputError, match=r"another run has completed a dataset there since this one began.*one at a time"
    ):
        finished(tmp_path, ALL, seed=1)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_rejects_shards_that_another_run_wrote_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00007.tfrecord").write_bytes(b"x")
    with pytest.raises(OutputError, match=r"1 shard of another run, such as train-00000-of-00007\.tfrecord"):
        finished(tmp_path, ALL)
    assert not (tmp_path / "manifest.json").exists()
