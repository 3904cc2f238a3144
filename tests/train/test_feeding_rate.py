"""A feeding rate given by a flag.

A rehearsal that prints the rate compiles a model first, for seconds.
"""

import json
import math
from pathlib import Path

import pytest

from tpudata.devices.tpu_compiler.step_cost import FeedingRate
from tpudata.errors import StorageError, UsageError
from tpudata.train.feeding_rate import read_feeding_rate


def test_accepts_a_number_or_a_bench_report(tmp_path: Path) -> None:
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
def test_rejects_rates_that_are_not_above_0(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_feeding_rate(text, "--feeding")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("records_per_second", number) for number in (0, -5, math.nan, math.inf)),
        *(("cpu_seconds_per_record", number) for number in (-1, math.nan, math.inf)),
        *(("cores", number) for number in (0, -1, math.inf)),
    ],
)
def test_rejects_bench_reports_with_impossible_numbers(name: str, number: float, tmp_path: Path) -> None:
    numbers = {"records_per_second": 800.0, "cpu_seconds_per_record": 0.002, "cores": 2, name: number}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"stages": [numbers], "cores": numbers.pop("cores")}))
    with pytest.raises(UsageError, match="is not a report of tpudata bench"):
        read_feeding_rate(str(path), "--feeding")


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON", "[" * 100_000, '{"stages": [], "cores": 2}'])
def test_rejects_files_that_are_not_bench_reports(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a report of tpudata bench"):
        read_feeding_rate(str(path), "--feeding")
    with pytest.raises(StorageError):
        read_feeding_rate(str(tmp_path / "missing"), "--feeding")
