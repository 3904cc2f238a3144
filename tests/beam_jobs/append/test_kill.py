"""Appends that are killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.beam_jobs.append.samples import FLAGS, Sample, defects
from tests.beam_jobs.test_kill import Jobs
from tests.helpers.pictures import digests
from tpudata.errors import OutputError
from tpudata.format import open_dataset


def test_killed_append_keeps_the_old_dataset_and_can_be_finished(sample: Sample, tmp_path: Path) -> None:
    flags = ("--append", "--num-shards=6")
    jobs = Jobs("beam_jobs.images", f"--input={sample.source}", *FLAGS, *flags)
    sample.grow()
    for number in range(20):
        Image.new("RGB", (60, 50), (number, 0, 0)).save(sample.source / "eel" / f"more{number}.png")
    (sample.source / "eel" / "bad.png").write_bytes(b"no picture again")
    records, before, old = sample.records(), sample.state(), len(list(sample.output.glob("*.tfrecord")))
    undisturbed = Sample(sample.source, shutil.copytree(sample.output, tmp_path / "undisturbed"))
    undisturbed.convert(*flags)
    due = digests(undisturbed.output)
    kept: dict[str, tuple[int, bytes]] = {}
    kills = 0
    for shards in (1, 5):
        _, killed = jobs.run(sample.output, kill_after=0, shards=old + shards)
        if not killed:
            # It was done before the kill came.
            break
        kills += 1
        state = sample.state()
        assert {path: state[path] for path in before} == before
        # Shards that were whole at the last kill are kept.
        assert {path: state[path] for path in kept} == kept
        # The keys are the last file written for a shard.
        whole = {path.removesuffix(".keys") for path in state if "-a001-" in path and path.endswith(".keys")}
        kept = {path: file for path, file in state.items() if path.removesuffix(".index") in whole}
        assert sample.records() == records
        strays = [defect for defect in defects(sample.output) if "should not be there" not in defect]
        assert all("rejected inputs" in stray for stray in strays), strays
    assert kills
    jobs.run(sample.output)
    assert digests(sample.output) == due
    assert defects(sample.output) == []


def test_append_killed_before_its_manifest_keeps_the_old_dataset(first: Sample, grown: Sample, tmp_path: Path) -> None:
    due = digests(grown.output)
    written = ("labels.txt", "dataset_info.json", "features.json", "manifest.json")
    for done in range(len(written)):
        sample = Sample(grown.source, tmp_path / str(done))
        shutil.copytree(grown.output, sample.output)
        for name in written[done:]:
            shutil.copy(first.output / name, sample.output / name)
        (sample.output / ".tpudata-known-0123").write_bytes(b"")
        assert open_dataset(str(sample.output)).labels() == ("cat", "dog", "eel")
        assert sample.records() == first.records()
        if done in (0, 3):
            sample.convert("--append")
            assert digests(sample.output) == due
    # Names that are no continuation of what the manifest was written with are not taken for one.
    (sample.output / "manifest.json").write_bytes((first.output / "manifest.json").read_bytes())
    (sample.output / "labels.txt").write_text("dog\ncat\neel\nant\n")
    with pytest.raises(Exception, match="has 4 names, the manifest counts 3 classes"):
        open_dataset(str(sample.output)).labels()


def test_rejects_shards_of_a_killed_append_with_another_plan(sample: Sample) -> None:
    sample.grow()
    for name in ("train-a001-00000-of-00007", "validation-a001-00000-of-00009"):
        (sample.output / f"{name}.tfrecord").write_bytes(b"whole")
    before = sample.state()
    with pytest.raises(OutputError, match=r"2 shards of another run, such as train-a001-.* their files in index/"):
        sample.convert("--append")
    assert sample.state() == before
