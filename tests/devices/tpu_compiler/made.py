"""Costs with round numbers."""

from typing import Any

from tpudata.devices.tpu_compiler.compiler import CompiledLoop
from tpudata.devices.tpu_compiler.step_cost import StepCost
from tpudata.devices.tpu_compiler.topologies import find_slice

COMPILED: dict[str, Any] = {
    "compiler": "libtpu 1.2.3",
    "arguments": 3 * 2**30,
    "outputs": 2**20,
    "temporaries": 2**30,
    "code": 3 * 2**20,
    "flops": 1.97e12,
    "bytes_accessed": 4.095e9,
    "seconds": 2.5,
}


def make_cost(tpu: str = "v5e-16", mode: str = "train", batch_size: int = 2048, **changes: Any) -> StepCost:
    """Return the cost of a step that takes 10 ms at the peak of a v5e, and 5 ms at its bandwidth."""
    compiled = CompiledLoop(**{**COMPILED, **changes})
    return StepCost(mode, find_slice(tpu, "test"), "quick", batch_size, 10, 2**20, compiled)
