"""Rehearsal of the memory: check that the variables and the batch of a step fit a TPU device."""

import logging
from collections.abc import Iterator

import tensorflow as tf

from tpudata.console.tables import memory_text
from tpudata.devices.tpu_compiler.step_cost import StepCost
from tpudata.devices.tpu_compiler.topologies import CHIPS, GIB, TPUSlice
from tpudata.estimator.api.findings import Report
from tpudata.estimator.tpu_check.operations import StepGraph, find_code_line
from tpudata.tensor_types import Specs

_log = logging.getLogger("tpudata")
# A device with this memory is common, so what fits it needs no finding if no slice is named.
_COMMON_MEMORY_BYTES = 16 * GIB
MEMORY_FIX = "use a smaller model or batch, or another optimizer: for each weight SGD stores nothing, Momentum one value, Adam two"
# Types of the operations whose results share the memory of their inputs, or take none.
_NOT_STORED = ("Identity", "Reshape", "ReadVariableOp", "ExpandDims", "Squeeze", "VarHandleOp", "NoOp")


def check_memory(graph: StepGraph, specs: Specs, tpu: TPUSlice | None, report: Report) -> None:
    """Report a finding if a device has too little memory for the variables and its part of the batch.

    Their size is a lower bound. Only the TPU's compiler knows how much the step needs in addition: XLA fuses operations, so
    the sum of the tensors that are alive together may be many times too high.

    Args:
        graph: graph of the step.
        specs: specs of the batch of one replica.
        tpu: the slice that the step is for, or None for any.
        report: function that adds a finding.
    """
    initial_values = [graph.blueprint.get_initial_value(info) for info in graph.blueprint.variables]
    batch = [spec for spec in tf.nest.flatten(specs) if spec is not None]
    min_bytes = sum(map(count_bytes, (*initial_values, *batch)))
    need = f"its variables and its part of the batch take {memory_text(min_bytes)}"
    _log.info("Memory of a device: %s.", need)
    if tpu is not None:
        if min_bytes > tpu.chip.device_hbm:
            report(
                "memory of a device",
                f"{need}, and one of {tpu.name} has {memory_text(tpu.chip.device_hbm)}",
                MEMORY_FIX,
            )
        return
    chips = sorted(CHIPS.values(), key=lambda chip: chip.device_hbm)
    small_chips = [chip.name for chip in chips if chip.device_hbm < min_bytes]
    larger_chips = [f"{chip.name} has {memory_text(chip.device_hbm)}" for chip in chips if chip.device_hbm >= min_bytes]
    # Without a slice, report only what does not fit a device of common size.
    if min_bytes > _COMMON_MEMORY_BYTES:
        alternatives = f"; a device of {', '.join(larger_chips)}" if larger_chips else ""
        report("memory of a device", f"{need}, and a TPU {', '.join(small_chips)} has less{alternatives}", MEMORY_FIX)


def check_next_batches(cost: StepCost, report: Report) -> None:
    """Report a loop that fits a device, but not together with the batches of the next one."""
    needed_bytes = cost.compiled.hbm + cost.next_batches
    device_bytes = cost.tpu.chip.device_hbm
    if needed_bytes > device_bytes:
        what = (
            f"a loop of steps takes {memory_text(cost.compiled.hbm)} and the batches of the next one "
            f"{memory_text(cost.next_batches)}, and a device of {cost.tpu.name} has {memory_text(device_bytes)}"
        )
        report("memory of a device", what, MEMORY_FIX, is_rejected=False)


def describe_largest_tensors(graph: StepGraph, max_tensors: int = 3) -> str:
    """Describe the largest tensors of a step, with the code lines that made them; omit tensors under a tenth of the largest."""
    # Keep one tensor for each shape, dtype and line: a line in a loop of Python makes many equal tensors.
    tensors = {(tensor.shape, tensor.dtype, find_code_line(tensor.op)): tensor for tensor in _iterate_stored(graph)}
    largest = sorted(tensors.values(), key=count_bytes, reverse=True)[:max_tensors]
    largest = [tensor for tensor in largest if count_bytes(tensor) * 10 >= count_bytes(largest[0])]
    return ", ".join(
        f"{tensor.shape} {tensor.dtype.name} of {memory_text(count_bytes(tensor))} at {find_code_line(tensor.op)}"
        for tensor in largest
    )


def _iterate_stored(graph: StepGraph) -> Iterator[tf.Tensor]:
    """Yield the tensors of a step that take memory, and whose size is known."""
    for operation in graph.operations:
        if operation.type not in _NOT_STORED:
            yield from (tensor for tensor in operation.outputs if count_bytes(tensor))


def count_bytes(tensor: tf.Tensor | tf.TensorSpec) -> int:
    """Return the number of bytes of a tensor; 0 if its shape is unknown."""
    if not tensor.shape.is_fully_defined():
        return 0
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size or 0)
