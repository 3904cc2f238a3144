"""Files of records are found on the workers: the job names the inputs and no file of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.options import ConvertOptions
from beam_jobs.pipeline import build_pipeline
from beam_jobs.reshard import reshard_conversion
from beam_jobs.run.progress import ProgressReport
from beam_jobs.stored_records.options import ReshardOptions
from beam_jobs.stored_records.stored_files import StoredDataset
from tests.beam_jobs.pipelines import local_pipeline
from tests.helpers.datasets import write_dataset
from tests.helpers.frames import framed
from tpudata.errors import DatasetError
from tpudata.format import Feature, encode_example, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME


def dataset(folder: Path, shards: int) -> str:
    records = [{"n": number} for number in range(shards)]
    write_dataset(str(folder), {"train": records}, [Feature("n", "int64", "int64")], layout="examples", shards=shards)
    return str(folder)


def files(folder: Path, count: int) -> str:
    folder.mkdir(parents=True)
    for number in range(count):
        record = encode_example({"n": number})
        (folder / f"train-{number:05d}-of-{count:05d}").write_bytes(framed(record))
    return str(folder)


@pytest.mark.parametrize("write", [dataset, files])
def test_the_job_does_not_grow_with_files(tmp_path: Path, write: object) -> None:
    sizes = []
    for count in (2, 300):
        source = write(tmp_path / f"in{count:03d}", count)  # type: ignore[operator]
        pipeline = local_pipeline()
        conversion = reshard_conversion(ConvertOptions(source, str(tmp_path / "out")), [source], ReshardOptions())
        build_pipeline(conversion, pipeline, ProgressReport(None))
        sizes.append(len(pipeline.to_runner_api().SerializeToString()))
    assert abs(sizes[1] - sizes[0]) < 200


def test_a_dataset_that_is_changed_after_the_command_looked_at_it_is_an_error(tmp_path: Path) -> None:
    stored = StoredDataset.of(open_dataset(dataset(tmp_path / "in", 2)))
    manifest = tmp_path / "in" / MANIFEST_NAME
    before = manifest.read_bytes()
    manifest.write_bytes(before.replace(b"examples", b"exemples"))
    with pytest.raises(DatasetError):
        stored.open()
    dataset(tmp_path / "other", 3)
    manifest.write_bytes((tmp_path / "other" / MANIFEST_NAME).read_bytes())
    with pytest.raises(DatasetError, match="the dataset was changed during the run"):
        stored.open()
    manifest.write_bytes(before)
    assert stored.open().manifest.records == 2
