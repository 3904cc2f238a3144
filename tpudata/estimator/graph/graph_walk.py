"""Walks over a graph: what a session would run for a fetch, and which operations change something."""

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_READS = ("VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_EFFECTS_WITHOUT_RESOURCE = (
    "Assert",
    "Case",
    "EagerPyFunc",
    "If",
    "Print",
    "PrintV2",
    "PyFunc",
    "StatefulPartitionedCall",
    "While",
)


_Item = TypeVar("_Item", bound=Hashable)


def reached(starts: Iterable[_Item], following: Callable[[_Item], Iterable[_Item]]) -> dict[_Item, None]:
    """Return all that can be reached from some items of a graph, those among them, each once, in a fixed order.

    Args:
        starts: where the walk begins.
        following: what is reached from an item directly.
    """
    found = dict.fromkeys(starts)
    todo = list(found)
    while todo:
        fresh = [item for item in dict.fromkeys(following(todo.pop())) if item not in found]
        found.update(dict.fromkeys(fresh))
        todo += fresh
    return found


def needed_operations(
    operations: Iterable[Any], inputs: Collection[str] = (), waits_for: Callable[[Any], bool] | None = None
) -> set[Any]:
    """Return operations of a graph and all that they need.

    Args:
        operations: where the walk begins.
        inputs: names of tensors that are given; what computes them is not needed.
        waits_for: whether operations that have a control dependency on the given one wait for it; None: all do.
    """

    def is_waited_for(operation: Any) -> bool:
        if any(tensor.name in inputs for tensor in operation.outputs):
            return False
        return waits_for is None or waits_for(operation)

    def before(operation: Any) -> Iterator[Any]:
        yield from (tensor.op for tensor in operation.inputs if tensor.name not in inputs)
        yield from (item for item in operation.control_inputs if is_waited_for(item))

    return {*reached(operations, before)}


def is_effect(operation: Any) -> bool:
    """Return whether an operation may change something other than its outputs."""
    if operation.type in _READS or not _is_stateful(operation.type):
        return False
    return operation.type in _EFFECTS_WITHOUT_RESOURCE or any(item.dtype == tf.resource for item in operation.inputs)


@functools.cache
def _is_stateful(kind: str) -> bool:
    return bool(op_def_registry.get(kind).is_stateful)
