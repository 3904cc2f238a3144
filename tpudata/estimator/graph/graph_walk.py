"""Walks over a graph: what a session would run for a fetch, and which operations change something."""

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

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

    todo = list(operations)
    found = set(todo)
    while todo:
        operation = todo.pop()
        before = {tensor.op for tensor in operation.inputs if tensor.name not in inputs}
        before |= {item for item in operation.control_inputs if is_waited_for(item)}
        fresh = [item for item in before if item not in found]
        found.update(fresh)
        todo += fresh
    return found


def is_effect(operation: Any) -> bool:
    """Whether an operation may change something other than its outputs."""
    if operation.type in _READS or not _is_stateful(operation.type):
        return False
    return operation.type in _EFFECTS_WITHOUT_RESOURCE or any(item.dtype == tf.resource for item in operation.inputs)


@functools.cache
def _is_stateful(kind: str) -> bool:
    return bool(op_def_registry.get(kind).is_stateful)
