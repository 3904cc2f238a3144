"""Variables to which replicas may assign different values, found in a model_fn's scratch graph."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.collectives import is_sum_over_all
from tpudata.estimator.graph.graph_walk import is_effect
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo
from tpudata.estimator.tracing.optimizer import APPLIED

_OPTIMIZERS = ("ResourceApply", "ResourceSparseApply")
_UPDATES = (
    *_OPTIMIZERS,
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
)


def require_cross_shard(blueprint: Blueprint) -> None:
    """Check that every optimizer of a model for several replicas is wrapped in CrossShardOptimizer.

    Other operations may only assign values to a trainable variable that are the same on all replicas, such as its clipped value,
    not values computed from the batch.

    Raises:
        ModelFnValueError: another operation assigns a value computed from the batch to a trainable variable.
    """
    applied = {*blueprint.graph.get_collection(APPLIED)}

    def is_update(operation: Any) -> bool:
        return operation.type.startswith(_UPDATES) and operation.name not in applied

    batch = {item.op.name for item in tf.nest.flatten(blueprint.arguments) if item is not None}
    # An optimizer that is not wrapped also differs if it sums by itself: it does not divide.
    mixed = _mixed_variables(
        blueprint, is_update, batch, is_mixed=lambda operation: operation.type.startswith(_OPTIMIZERS)
    )
    for info in blueprint.variables:
        if info.trainable and info.name in mixed:
            raise ModelFnValueError(
                f"model_fn: {mixed[info.name].name!r} changes the trainable variable {info.name!r} by an optimizer that is "
                "not wrapped in CrossShardOptimizer (got an update from one replica's rows, expected one from those of all). "
                "Wrap the optimizer, as CrossShardOptimizer(optimizer), which changes nothing on one device; make a variable "
                "that no optimizer updates with trainable=False, and it gets the value of the first replica."
            )


def differing_variables(blueprint: Blueprint, writes: Collection[str]) -> set[str]:
    """Return the names of the variables to which a step of several replicas may assign values that differ between them.

    These are values computed from the batch, from the number of the replica, or from random draws, without a sum over all replicas
    in between.

    Args:
        blueprint: blueprint of the model, traced in `replica_context`.
        writes: names of the variables that the step may change.
    """
    operations = blueprint.graph.get_operations()
    # The number of the replica is a placeholder, too; that others are the same on all replicas does not matter.
    sources = {item.name for item in operations if item.type == "Placeholder"} | _draws(blueprint.graph)
    seeds = [info for info in blueprint.variables if info.is_keras_seed]
    sources |= {_handle(blueprint, info).op.name for info in seeds}
    mixed = _mixed_variables(blueprint, is_effect, sources)
    return (mixed.keys() | {info.name for info in seeds}) & set(writes)


def _mixed_variables(
    blueprint: Blueprint,
    is_update: Callable[[Any], bool],
    sources: Iterable[str],
    is_mixed: Callable[[Any], bool] = lambda operation: False,  # noqa: ARG005
) -> dict[str, Any]:
    """Return an update with values that may differ between replicas, by the name of each variable that has one.

    Args:
        blueprint: blueprint of the model.
        is_update: function from an operation that takes a variable's handle to whether it changes the variable.
        sources: names of operations whose results differ between replicas.
        is_mixed: function from an update to whether its values differ in any case.
    """
    # Assignments of initial values are not updates.
    making = {name for info in blueprint.variables for name in (info.initializer, info.made_with)}
    updates = {}
    for info in blueprint.variables:
        handle = _handle(blueprint, info)
        found = [item for item in handle.consumers() if item.name not in making and is_update(item)]
        updates[info.name] = (handle, found)
    operations = blueprint.graph.get_operations()
    # The handle of a mixed variable stands for its value.
    differing = set(sources)
    mixed: dict[str, Any] = {}
    size = -1
    while len(differing) > size:
        size = len(differing)
        for operation in operations:
            if operation.name not in differing and _takes(operation, differing) and not is_sum_over_all(operation):
                differing.add(operation.name)
        for name, (handle, found) in updates.items():
            for operation in found:
                if name not in mixed and (is_mixed(operation) or _takes(operation, differing, handle.op.name)):
                    mixed[name] = operation
                    differing.add(handle.op.name)
    return mixed


def _takes(operation: Any, differing: Collection[str], handle: str = "") -> bool:
    """Return whether an operation has an input from one of `differing`, other than `handle`."""
    return any(name in differing and name != handle for name in (tensor.op.name for tensor in operation.inputs))


def _handle(blueprint: Blueprint, info: VariableInfo) -> Any:
    return blueprint.graph.get_tensor_by_name(info.handle)


def _draws(graph: Any) -> set[str]:
    """Return the names of operations that draw random values, themselves or in a function that they call."""
    graph_def = graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    drawing: set[str] = set()

    def draws(node: Any) -> bool:
        # All stateful random operations have a second seed.
        return "seed2" in node.attr or not drawing.isdisjoint(_called_functions(node))

    size = -1
    while len(drawing) > size:
        size = len(drawing)
        drawing.update(name for name, nodes in functions.items() if any(map(draws, nodes)))
    return {node.name for node in graph_def.node if draws(node)}


def _called_functions(node: Any) -> set[str]:
    values = node.attr.values()
    return {value.func.name for value in values} | {item.name for value in values for item in value.list.func}
