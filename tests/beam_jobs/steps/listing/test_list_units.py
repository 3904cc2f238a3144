"""From a source to units: in the pipeline, the same whatever lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

import tpudata
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.images import image_conversion
from beam_jobs.options import ConvertOptions
from beam_jobs.pipeline import build_pipeline
from beam_jobs.references.reference import Reference
from beam_jobs.run.progress import ProgressReport
from beam_jobs.sources import Reject, Source, SourceOptions, raise_rejection
from beam_jobs.steps.listing.growing import growing
from beam_jobs.steps.listing.list_units import SKIPPED, ListUnits
from scripts.fake_gcs import FakeGcs
from tests.beam_jobs.pipelines import local_pipeline
from tests.beam_jobs.sources.inputs import jpeg, write_files
from tpudata.storage import LocalStorage, folder_ranges, select
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.select import _storage


class Lengths(Source):
    """A source whose parts are numbers, and whose units are that many."""

    def __init__(self, *lengths: int) -> None:
        self._lengths = lengths

    def parts(self) -> Iterator[int]:
        return iter(self._lengths)

    def units(self, part: int, ignored: list[str]) -> Iterator[str]:
        for number in range(part):
            ignored.append(f"{part}/skipped")
            yield f"{part}/{number}"

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        del unit, ignored, reject
        raise AssertionError


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_unit_comes_once_and_is_numbered_in_order(shuffle: bool) -> None:
    lengths = (3, 0, 700, 1, *[2] * 10)
    expected = [f"{length}/{number}" for length in lengths for number in range(length)]
    with beam.Pipeline() as pipeline:
        found = pipeline | ListUnits(Lengths(*lengths), ConvertOptions("in", "out", shuffle=shuffle))
        units = found.units | beam.FlatMap(lambda some: [unit for _, unit in some])
        assert_that(units, equal_to(expected), "units")
        skipped = found[SKIPPED] | beam.Map(lambda counts: counts.ignored) | beam.CombineGlobally(sum)
        assert_that(skipped, equal_to([len(expected)]), "skipped")
        if not shuffle:
            assert_that(found.units | beam.FlatMap(lambda some: some), equal_to(list(enumerate(expected))), "numbers")


def test_few_units_are_spread_and_many_come_together() -> None:
    lists = list(growing(range(20_000), 1))
    assert [item for part in lists for item in part] == list(range(20_000))
    assert {len(part) for part in lists[:100]} == {1}
    assert len(lists) < 1100


def files(root: Path) -> Path:
    return write_files(
        root, {f"{name}/{n % 3}/{n}.jpg": jpeg(n) for n in range(75) for name in ("cat", "dog")} | {"cat/.x": b""}
    )


def graph_bytes(options: ConvertOptions) -> int:
    """The size of the job that a conversion of images submits."""
    pipeline = local_pipeline()
    conversion = image_conversion(options, SourceOptions(unlabelled=True), ImageOptions())
    build_pipeline(conversion, pipeline, ProgressReport(None))
    return len(pipeline.to_runner_api().SerializeToString())


def test_the_job_is_as_large_whatever_the_input(tmp_path: Path) -> None:
    few = write_files(tmp_path / "few", {"0.jpg": jpeg(0)})
    many = write_files(tmp_path / "many", {f"{n}/{n}.jpg": b"" for n in range(1000)})
    sizes = [graph_bytes(ConvertOptions(str(folder), str(tmp_path / "out"))) for folder in (few, many)]
    assert abs(sizes[1] - sizes[0]) < 500


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("shuffle", "unlabelled"), [(True, False), (False, True)])
def test_ranges_and_workers_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, unlabelled: bool
) -> None:
    source = files(tmp_path / "in")

    def converted(name: str) -> dict[str, bytes]:
        tpudata.convert_images(source, tmp_path / name, shard_bytes=8_000, shuffle=shuffle, unlabelled=unlabelled)
        return contents(tmp_path / name)

    whole = converted("whole")
    # More ranges than come one by one.
    monkeypatch.setattr(select, "_LOCAL", LocalStorage(range_names=1))
    assert sum(1 for _ in folder_ranges(f"{source}/cat/0", deep=True)) == 25
    cut = converted("cut")
    if shuffle:
        assert cut == whole
    else:
        # Where a unit ends, a shard may be cut: the records and their order are the same.
        assert b"".join(cut[name] for name in sorted(cut) if name.endswith(".tfrecord")) == b"".join(
            whole[name] for name in sorted(whole) if name.endswith(".tfrecord")
        )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    with FakeGcs(page=8) as server:
        server.bucket("b")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        # The client of the test before knows another server.
        _storage.cache_clear()
        yield server
        _storage.cache_clear()


# tests/beam_jobs/test_text.py has a text in a bucket.
@pytest.mark.parametrize("kind", ["flat", "folders", pytest.param("text", marks=pytest.mark.matrix)])
def test_a_bucket_in_ranges_gives_the_bytes_of_a_disk(
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
    monkeypatch.setattr(select, "_storage", {"gs": storage}.get)
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
