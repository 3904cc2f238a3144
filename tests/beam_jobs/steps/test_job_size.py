"""The size of a submitted job does not depend on its input, and many units cost few elements.

Engines limit the size of a job to some MB. No command prints it, so these tests build the pipelines of conversions themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_jobs.conversion import Conversion
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.images import make_image_conversion
from beam_jobs.options import ConvertOptions
from beam_jobs.pipeline import build_pipeline
from beam_jobs.reshard import make_reshard_conversion
from beam_jobs.run.progress import ProgressReport
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.lists.lists import Lists
from beam_jobs.steps.listing.growing_batches import batch_growing
from beam_jobs.stored_records.options import ReshardOptions
from tests.beam_jobs.pipelines import local_pipeline
from tests.beam_jobs.sources.inputs import write_files
from tests.helpers.datasets import write_dataset
from tests.helpers.frames import add_frame
from tpudata.format import Feature, encode_example


def job_bytes(conversion: Conversion) -> int:
    pipeline = local_pipeline()
    build_pipeline(conversion, pipeline, ProgressReport(None))
    return len(pipeline.to_runner_api().SerializeToString())


def pictures(folder: Path, count: int) -> Conversion:
    write_files(folder, {f"{n}/{n}.jpg": b"" for n in range(count)})
    options = ConvertOptions(str(folder), f"{folder}-out")
    return make_image_conversion(options, SourceOptions(unlabelled=True), ImageOptions())


def lists(folder: Path, count: int) -> Conversion:
    """Lists of ten rows, of which each row is a block."""
    rows = ["path,label", *(f"{n}.jpg,c{n % 3}" for n in range(10))]
    write_files(folder, {f"{n}.csv": "\n".join(rows).encode() for n in range(count)})
    options = ConvertOptions(f"{folder}/*.csv", f"{folder}-out")
    conversion = make_image_conversion(options, SourceOptions(), ImageOptions())
    assert isinstance(conversion.source, Lists)
    return dataclasses.replace(conversion, source=dataclasses.replace(conversion.source, block_bytes=1))


def dataset(folder: Path, count: int) -> Conversion:
    records = [{"n": number} for number in range(count)]
    write_dataset(str(folder), {"train": records}, [Feature("n", "int64", "int64")], layout="examples", shards=count)
    return reshard(folder)


def record_files(folder: Path, count: int) -> Conversion:
    record = add_frame(encode_example({"n": 1}))
    write_files(folder, {f"train-{number:05d}-of-{count:05d}": record for number in range(count)})
    return reshard(folder)


def reshard(folder: Path) -> Conversion:
    return make_reshard_conversion(ConvertOptions(str(folder), f"{folder}-out"), [str(folder)], ReshardOptions())


@pytest.mark.parametrize("conversion_of", [pictures, lists, dataset, record_files])
def test_the_job_does_not_grow_with_the_input(conversion_of: Callable[[Path, int], Conversion], tmp_path: Path) -> None:
    few, many = (job_bytes(conversion_of(tmp_path / f"in{count:03d}", count)) for count in (2, 300))
    assert abs(many - few) < 500


def test_spreads_few_units_and_groups_many() -> None:
    lists = list(batch_growing(range(20_000), 1))
    assert [item for part in lists for item in part] == list(range(20_000))
    assert {len(part) for part in lists[:100]} == {1}
    assert len(lists) < 1100
