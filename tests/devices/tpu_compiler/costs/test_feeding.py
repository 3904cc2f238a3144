"""A measured rate of feeding against what a step takes."""

import json
from pathlib import Path

import pytest

from tests.devices.tpu_compiler.costs.made import make_cost
from tpudata.devices.tpu_compiler.costs.feeding import FeedingRate, read_feeding_rate
from tpudata.errors import StorageError, UsageError


def test_counts_the_cores_that_feeding_takes() -> None:
    # Each of 4 hosts must deliver 51,200 records/s; a record takes 1 ms of a core.
    found = FeedingRate(12_800.0, 0.001, 16).compare(make_cost())
    assert found["needed"] == pytest.approx(51_200)
    assert found["host_cores"] == 52
    assert found["is_input_bound"] is True
    assert found["waiting"] == pytest.approx(0.75)


def test_a_faster_input_does_not_wait() -> None:
    found = FeedingRate(100_000.0).compare(make_cost())
    assert (found["is_input_bound"], found["waiting"], found["host_cores"]) == (False, 0.0, None)


def test_reads_a_number_or_a_report_of_bench(tmp_path: Path) -> None:
    assert read_feeding_rate("1.5e3", "--feeding") == FeedingRate(1500.0)
    stages = [
        {"records_per_second": 9.0, "cpu_seconds_per_record": 9.0},
        {"records_per_second": 800.0, "cpu_seconds_per_record": 0.002},
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"stages": stages, "cores": 2}))
    assert read_feeding_rate(str(path), "--feeding") == FeedingRate(800.0, 0.002, 2)


@pytest.mark.parametrize(
    ("text", "message"), [("0", "'0' is not a rate"), ("-3", "is not a rate"), ("nan", "is not a rate")]
)
def test_rejects_other_rates(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_feeding_rate(text, "--feeding")


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON", '{"stages": [], "cores": 2}'])
def test_rejects_other_files(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a report of tpudata bench"):
        read_feeding_rate(str(path), "--feeding")
    with pytest.raises(StorageError):
        read_feeding_rate(str(tmp_path / "missing"), "--feeding")
