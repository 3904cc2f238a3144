"""Rehearsal of the memory: check that a step fits a TPU core, by an estimate from the sizes of its tensors."""

import logging
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.findings import Find
from tpudata.estimator.tpu_check.operations import Graph

_log = logging.getLogger("tpudata")
GIB = 2**30
# GiB of one device of TensorFlow: a core of v2 and v3, a chip of the others. Cloud TPU documentation, "TPU versions".
_CORES = {"v2": 8, "v3": 16, "v5e": 16, "v4": 32, "v6e": 32, "v5p": 95}
_COMMON = 16
# Operations that return their input, or that are repeated instead of stored.
_NO_MEMORY = (
    "Identity",
    "Reshape",
    "ReadVariableOp",
    "Const",
    "Placeholder",
    "VarHandleOp",
    "ExpandDims",
    "Squeeze",
    "NoOp",
)


def check_memory(graph: Graph, specs: Any, find: Find) -> None:
    """Compare the memory that a step needs with that of TPU cores.

    Every core certainly stores all variables and its part of the batch. The tensors of the step are added to that; XLA fuses
    operations, so that many of them are never stored, and the largest sum of tensors alive at once is a high estimate.
    """
    initial = [graph.blueprint.graph.get_tensor_by_name(info.initial) for info in graph.blueprint.variables]
    batch = [item for item in tf.nest.flatten(specs) if item is not None]
    certain = sum(map(byte_size, (*initial, *batch))) / GIB
    guess = certain + _most_alive(graph) / GIB
    text = f"its variables and its part of the batch take {_size(certain)}"
    _log.info("Memory of a core: %s, with all tensors of a step about %s.", text, _size(guess))
    small = [name for name, size in _CORES.items() if size < certain]
    larger = [f"{name} has {size}" for name, size in _CORES.items() if size >= certain]
    fix = "use a smaller model or batch, or another optimizer: for each weight SGD stores nothing, Momentum one value, Adam two"
    if certain > _COMMON:
        has = f"; a core of {', '.join(larger)}" if larger else ""
        find("memory of a core", f"{text}, and a TPU {', '.join(small)} has less{has}", fix)
    elif small:
        find("memory of a core", f"{text}, and a TPU {', '.join(small)} has less", fix, is_rejected=False)
    elif guess > _COMMON:
        find(
            "memory of a core",
            f"{text}, and with the tensors of a step up to about {_size(guess)}, while a TPU v3 or v5e has {_COMMON} GiB",
            "check the memory profile on the TPU before a long run; a smaller batch helps",
            is_rejected=False,
        )


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.1f} MiB"


def _most_alive(graph: Graph) -> int:
    """Return the largest number of bytes alive at once, if each tensor lives from its operation to its last consumer."""
    position = {item: i for i, item in enumerate(graph.operations)}
    alive, most = 0, 0
    ending: dict[int, int] = {}
    for i, operation in enumerate(graph.operations):
        if operation.type not in _NO_MEMORY:
            for tensor in operation.outputs:
                last = max((position[item] for item in tensor.consumers() if item in position), default=i)
                ending[last] = ending.get(last, 0) + byte_size(tensor)
                alive += byte_size(tensor)
        most = max(most, alive)
        alive -= ending.pop(i, 0)
    return most


def byte_size(item: Any) -> int:
    """Return the number of bytes of a tensor; 0 if its shape is unknown."""
    if not item.shape.is_fully_defined():
        return 0
    return int(item.shape.num_elements()) * int(item.dtype.size or 0)
