"""Walks over a graph: operations that a session would run for a fetch, and operations with an effect."""

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from tpudata.tensorflow_internals import op_def_registry

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
    """Return all items of a graph that can be reached from some, including these, each once, in a fixed order.

    Args:
        starts: items at which the walk begins.
        following: function from an item to those that it leads to directly.
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
    """Return operations of a graph and all operations that they depend on.

    Args:
        operations: operations at which the walk begins.
        inputs: names of tensors whose values are given, so that the operations that compute them are not needed.
        waits_for: function from an operation to whether others with a control dependency on it wait for it; None if all do.
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
