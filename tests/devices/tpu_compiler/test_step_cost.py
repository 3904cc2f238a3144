"""Bounds of a step, compared with numbers computed by hand."""

import math

import pytest

from tests.devices.tpu_compiler.made import make_cost
from tpudata.devices.tpu_compiler.step_cost import FeedingRate


def test_the_slower_of_compute_and_memory_bounds_a_step() -> None:
    cost = make_cost()
    assert cost.computing_seconds == pytest.approx(0.010)
    assert cost.memory_seconds == pytest.approx(0.005)
    assert cost.least_seconds == pytest.approx(0.010)
    # 2,048 records in 10 ms, on 16 chips of 4 hosts.
    found = cost.to_json()
    assert found["bound"] == "flops"
    assert found["records_per_second"] == pytest.approx(204_800)
    assert found["records_per_second_per_chip"] == pytest.approx(12_800)
    assert found["records_per_second_per_host"] == pytest.approx(51_200)
    slow = make_cost(bytes_accessed=819e9).to_json()
    assert slow["bound"] == "hbm"
    assert slow["least_seconds"] == pytest.approx(1)


def test_a_device_has_a_share_of_its_chips_flops() -> None:
    # 61.5 TFLOP/s: half a v3.
    assert make_cost("v3-8", flops=6.15e12).least_seconds == pytest.approx(0.1)


def test_hbm_total_is_the_sum_of_its_parts() -> None:
    hbm = make_cost().to_json()["hbm"]
    assert hbm == {
        "arguments": 3 * 2**30,
        "temporaries": 2**30,
        "outputs": 2**20,
        "code": 3 * 2**20,
        "total": 4 * 2**30 + 4 * 2**20,
        "next_batches": 10 * 2**20,
        "device": 16 * 2**30,
    }


def test_a_step_without_work_has_an_infinite_rate() -> None:
    cost = make_cost(flops=0.0, bytes_accessed=0.0)
    assert cost.records_per_second == math.inf
    assert cost.to_json()["records_per_second"] is None


def test_compare_counts_the_cores_that_feeding_takes() -> None:
    # Each of 4 hosts must deliver 51,200 records/s; a record takes 1 ms of a core.
    found = FeedingRate(12_800.0, 0.001, 16).compare(make_cost())
    assert found["needed"] == pytest.approx(51_200)
    assert found["host_cores"] == 52
    assert found["is_input_bound"] is True
    assert found["waiting"] == pytest.approx(0.75)


def test_a_fast_input_is_not_input_bound() -> None:
    found = FeedingRate(100_000.0).compare(make_cost())
    assert (found["is_input_bound"], found["waiting"], found["host_cores"]) == (False, 0.0, None)
