"""The table of costs.

Costs come from libtpu's compiler and change with its release, so the test makes them up.
"""

import re

from tests.devices.tpu_compiler.made import make_cost
from tpudata.devices.tpu_compiler.step_cost import FeedingRate
from tpudata.train.outputs.cost_table import make_cost_table


def test_has_a_column_for_each_mode() -> None:
    text = make_cost_table([make_cost(), make_cost(mode="eval", batch_size=512)], FeedingRate(12_800.0, 0.001, 16))
    head, compiler, *lines = text.splitlines()
    assert head == "v5e-16: 16 chips, 4 hosts; 16 devices, each with 16.00 GiB HBM, 197 TFLOP/s, 819 GB/s"
    assert compiler == "compiled by libtpu 1.2.3, quick effort"
    cells = [re.split(r"  +", line.strip()) for line in lines]
    assert cells[0] == ["train", "eval"]
    rows = {name: values for name, *values in cells[1:]}
    assert rows["records a step"] == ["2,048", "512"]
    assert rows["HBM: variables and batches"] == ["3.00 GiB"] * 2
    assert rows["HBM: results and program"] == ["4.0 MiB"] * 2
    assert rows["FLOPs"] == ["1.97 T"] * 2
    assert rows["a step takes at least"] == ["10 ms"] * 2
    assert rows["records/s to feed"] == ["204,800", "51,200"]
    assert rows["records/s a host"] == ["51,200", "12,800"]
    assert rows["records/s measured, 16 cores"] == ["12,800"] * 2
    assert rows["cores a host to feed"] == ["52", "13"]
    assert rows["waits for input"] == ["75% of the time", "0% of the time"]
