"""Rehearsal of the memory: check that the variables and the batch of a step fit a TPU device."""

import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpudata.console.tables import memory_text
from tpudata.devices.tpu_compiler.step_cost import StepCost
from tpudata.devices.tpu_compiler.topologies import CHIPS, GIB, TPUSlice
from tpudata.estimator.api.findings import Find
from tpudata.estimator.tpu_check.operations import Graph, place_of

_log = logging.getLogger("tpudata")
_COMMON = 16 * GIB
LESS = "use a smaller model or batch, or another optimizer: for each weight SGD stores nothing, Momentum one value, Adam two"
# Operations whose results are stored already, or take no memory.
_STORED = ("Identity", "Reshape", "ReadVariableOp", "ExpandDims", "Squeeze", "VarHandleOp", "NoOp")


def check_memory(graph: Graph, specs: Any, tpu: TPUSlice | None, find: Find) -> None:
    """Compare the memory that a device certainly needs with what it has.

    Every device stores all variables and its part of the batch. How much the step needs in addition, only the TPU's compiler
    tells: XLA fuses operations, so that the sum of the tensors that are alive at once may be many times too high.

    Args:
        graph: graph of the step.
        specs: specs of the batch of one replica.
        tpu: the slice that the step is for, or None for any.
        find: function that adds a finding.
    """
    initial = [graph.blueprint.graph.get_tensor_by_name(info.initial) for info in graph.blueprint.variables]
    batch = [item for item in tf.nest.flatten(specs) if item is not None]
    certain = sum(map(byte_size, (*initial, *batch)))
    text = f"its variables and its part of the batch take {memory_text(certain)}"
    _log.info("Memory of a device: %s.", text)
    if tpu is not None:
        if certain > tpu.chip.device_hbm:
            find("memory of a device", f"{text}, and one of {tpu.name} has {memory_text(tpu.chip.device_hbm)}", LESS)
        return
    chips = sorted(CHIPS.values(), key=lambda chip: chip.device_hbm)
    small = [chip.name for chip in chips if chip.device_hbm < certain]
    larger = [f"{chip.name} has {memory_text(chip.device_hbm)}" for chip in chips if chip.device_hbm >= certain]
    if certain > _COMMON:
        has = f"; a device of {', '.join(larger)}" if larger else ""
        find("memory of a device", f"{text}, and a TPU {', '.join(small)} has less{has}", LESS)


def check_next_batches(cost: StepCost, find: Find) -> None:
    """Report a loop that fits a device, but not together with the batches of the next one."""
    total, device = cost.compiled.hbm + cost.next_batches, cost.tpu.chip.device_hbm
    if total > device:
        what = (
            f"a loop of steps takes {memory_text(cost.compiled.hbm)} and the batches of the next one "
            f"{memory_text(cost.next_batches)}, and a device of {cost.tpu.name} has {memory_text(device)}"
        )
        find("memory of a device", what, LESS, is_rejected=False)


def describe_largest(graph: Graph, most: int = 3) -> str:
    """Return the largest tensors of a step in words, with the places that made them; none that is far smaller than the first."""
    tensors = {(tensor.shape, tensor.dtype, place_of(tensor.op)): tensor for tensor in _made(graph)}
    largest = sorted(tensors.values(), key=byte_size, reverse=True)[:most]
    largest = [item for item in largest if byte_size(item) * 10 >= byte_size(largest[0])]
    return ", ".join(
        f"{item.shape} {item.dtype.name} of {memory_text(byte_size(item))} at {place_of(item.op)}" for item in largest
    )


def _made(graph: Graph) -> Iterator[Any]:
    for operation in graph.operations:
        if operation.type not in _STORED:
            yield from (item for item in operation.outputs if byte_size(item))


def byte_size(item: Any) -> int:
    """Return the number of bytes of a tensor; 0 if its shape is unknown."""
    if not item.shape.is_fully_defined():
        return 0
    return int(item.shape.num_elements()) * int(item.dtype.size or 0)
