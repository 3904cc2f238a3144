"""Variables to which replicas may assign different values, found in a model_fn's scratch graph."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import is_sum_over_all
from tpudata.devices.graphs.graph_walk import is_effect
from tpudata.devices.graphs.library import called_functions, functions_with
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
# In the code that made a sum: the function in which v1 optimizers sum gradients, and files of Keras' optimizers, which do, too.
_V1_SUM = "_distributed_apply"
_KERAS_OPTIMIZERS = ("/keras/src/optimizers/", "/keras/src/backend/tensorflow/optimizer", "/tf_keras/src/optimizers/")


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
    mixed = _mixed_variables(blueprint, is_update, batch, _is_sum_of_program, _is_optimizers)
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
    mixed = _mixed_variables(blueprint, is_effect, sources, is_sum_over_all)
    return (mixed.keys() | {info.name for info in seeds}) & set(writes)


def _mixed_variables(
    blueprint: Blueprint,
    is_update: Callable[[Any], bool],
    sources: Iterable[str],
    is_shared: Callable[[Any], bool],
    is_mixed: Callable[[Any], bool] = lambda _: False,
) -> dict[str, Any]:
    """Return an update with values that may differ between replicas, by the name of each variable that has one.

    Args:
        blueprint: blueprint of the model.
        is_update: function from an operation that takes a variable's handle to whether it changes the variable.
        sources: names of operations whose results differ between replicas.
        is_shared: function from an operation to whether its results are the same on all replicas for any inputs.
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
    sources = frozenset(sources)
    # The handle of a mixed variable stands for its value.
    differing = set(sources)
    mixed: dict[str, Any] = {}
    size = -1
    while len(differing) > size:
        size = len(differing)
        for operation in operations:
            if operation.name not in differing and _takes(operation, differing) and not is_shared(operation):
                differing.add(operation.name)
        for name, (handle, found) in updates.items():
            for operation in found:
                # A condition may draw what it assigns.
                is_own = operation.name in sources or is_mixed(operation)
                if name not in mixed and (is_own or _takes(operation, differing, handle.op.name)):
                    mixed[name] = operation
                    differing.add(handle.op.name)
    return mixed


def _is_optimizers(operation: Any) -> bool:
    return bool(operation.type.startswith(_OPTIMIZERS))


def _is_sum_of_program(operation: Any) -> bool:
    """Return whether an operation is a sum over all replicas that no optimizer made, as optimizers sum without dividing."""
    return is_sum_over_all(operation) and not any(
        frame.name == _V1_SUM or any(maker in frame.filename.replace("\\", "/") for maker in _KERAS_OPTIMIZERS)
        for frame in operation.traceback
    )


def _takes(operation: Any, differing: Collection[str], handle: str = "") -> bool:
    """Return whether an operation has an input from one of `differing`, other than `handle`."""
    return any(name in differing and name != handle for name in (tensor.op.name for tensor in operation.inputs))


def _handle(blueprint: Blueprint, info: VariableInfo) -> Any:
    return blueprint.graph.get_tensor_by_name(info.handle)


def _draws(graph: Any) -> set[str]:
    """Return the names of operations that draw random values, themselves or in a function that they call."""
    graph_def = graph.as_graph_def()
    drawing = functions_with(graph_def, _is_draw)
    return {node.name for node in graph_def.node if _is_draw(node) or not drawing.isdisjoint(called_functions(node))}


def _is_draw(node: Any) -> bool:
    return "seed2" in node.attr  # All stateful random operations have it.
