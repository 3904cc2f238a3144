"""Walks over a graph: operations that a session would run for a fetch, and operations with an effect."""

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from tpudata.tensorflow_internals import op_def_registry

# Operations that change nothing, although TensorFlow calls them stateful.
_READS = ("VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
# Operations that may have an effect without an input that is a resource.
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


def walk_graph(starts: Iterable[_Item], follow: Callable[[_Item], Iterable[_Item]]) -> dict[_Item, None]:
    """Return all items that can be reached from `starts`, including `starts`, as the keys of a dict in a deterministic order.

    Args:
        starts: items at which the walk begins.
        follow: function from an item to its direct successors.
    """
    visited = dict.fromkeys(starts)
    pending = list(visited)
    while pending:
        new_items = [item for item in dict.fromkeys(follow(pending.pop())) if item not in visited]
        visited.update(dict.fromkeys(new_items))
        pending += new_items
    return visited


def find_needed_operations(
    operations: Iterable[tf.Operation],
    fed_names: Collection[str] = (),
    waits_for: Callable[[tf.Operation], bool] | None = None,
) -> set[tf.Operation]:
    """Return `operations` and all operations on which they depend.

    Args:
        operations: operations at which the walk begins.
        fed_names: names of fed tensors; the operations that compute them are not needed.
        waits_for: function from an operation that is a control input of a needed one to whether it is also needed; None if all
            control inputs are needed.
    """

    def is_waited_for(operation: tf.Operation) -> bool:
        if any(tensor.name in fed_names for tensor in operation.outputs):
            return False
        return waits_for is None or waits_for(operation)

    def list_dependencies(operation: tf.Operation) -> Iterator[tf.Operation]:
        yield from (tensor.op for tensor in operation.inputs if tensor.name not in fed_names)
        yield from (control for control in operation.control_inputs if is_waited_for(control))

    return {*walk_graph(operations, list_dependencies)}


def is_effect(operation: tf.Operation) -> bool:
    """Return whether an operation may change a resource, such as a variable, or may call Python, print or fail.

    Writes of files do not count.
    """
    # TensorFlow also calls reads of variables stateful.
    if operation.type in _READS or not _is_stateful(operation.type):
        return False
    # Other stateful operations, such as random ones, count only if they take a resource.
    return operation.type in _EFFECTS_WITHOUT_RESOURCE or any(
        tensor.dtype == tf.resource for tensor in operation.inputs
    )


@functools.cache
def _is_stateful(operation_type: str) -> bool:
    return bool(op_def_registry.get(operation_type).is_stateful)
