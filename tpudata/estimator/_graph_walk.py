"""Which operations of a graph a session would run: those that what it fetches depends on."""

from collections.abc import Callable, Collection, Iterable
from typing import Any


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
