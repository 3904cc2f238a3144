"""Variables to which replicas may assign different values, found in a model_fn's scratch graph."""

from collections.abc import Callable, Collection, Iterable

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import is_sum_over_all
from tpudata.devices.graphs.graph_walk import is_effect
from tpudata.devices.graphs.library import find_functions, list_called_functions
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.tracing.optimizer import APPLIED

# Prefixes of the types of operations that change a variable: of optimizers, and of all.
_OPTIMIZERS = ("ResourceApply", "ResourceSparseApply")
_UPDATES = (
    *_OPTIMIZERS,
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
)
# Marks of an optimizer's sums in a traceback: the function in which v1 optimizers sum gradients, and files of Keras' optimizers.
_V1_SUM_FUNCTION = "_distributed_apply"
_KERAS_OPTIMIZER_PATHS = (
    "/keras/src/optimizers/",
    "/keras/src/backend/tensorflow/optimizer",
    "/tf_keras/src/optimizers/",
)


def require_cross_shard(blueprint: Blueprint) -> None:
    """Reject updates of trainable variables that are computed from one replica's rows.

    Updates by CrossShardOptimizer are computed from all rows. Other operations may assign values that are the same on all
    replicas, such as a clipped weight.

    Raises:
        ModelFnValueError: an unwrapped optimizer updates a trainable variable, or another operation assigns to it a value that is
            computed from the batch, without a sum over all replicas.
    """
    wrapped_updates = {*blueprint.graph.get_collection(APPLIED)}

    def is_update(operation: tf.Operation) -> bool:
        return operation.type.startswith(_UPDATES) and operation.name not in wrapped_updates

    batch_ops = {placeholder.op.name for placeholder in blueprint.placeholders}
    unsynced_updates = _find_diverging_updates(
        blueprint,
        is_update,
        sources=batch_ops,
        is_synced=_is_sum_by_model,
        always_diverges=_is_optimizer_update,
    )
    for info in blueprint.variables:
        if info.is_trainable and info.name in unsynced_updates:
            raise ModelFnValueError(
                f"model_fn: {unsynced_updates[info.name].name!r} changes the trainable variable {info.name!r} by an optimizer that "
                "is not wrapped in CrossShardOptimizer (got an update from one replica's rows, expected one from those of all). "
                "Wrap the optimizer, as CrossShardOptimizer(optimizer), which changes nothing on one device; make a variable "
                "that no optimizer updates with trainable=False, and it gets the value of the first replica."
            )


def find_diverging_variables(blueprint: Blueprint, writes: Collection[str]) -> set[str]:
    """Return the names of variables to which replicas may assign different values in a step.

    Values may differ if they are computed from the batch, from the index of the replica, or from random draws, without a sum over
    all replicas in between.

    Args:
        blueprint: blueprint of the model, traced in `replica_context`.
        writes: names of the variables that the step may change.
    """
    operations = blueprint.graph.get_operations()
    # One of the placeholders is the replica's index. Others may be equal on all replicas, which does no harm.
    sources = {operation.name for operation in operations if operation.type == "Placeholder"} | _find_draws(
        blueprint.graph
    )
    # Seeds of Keras 3 must differ between replicas, so they count as diverging.
    seeds = [info for info in blueprint.variables if info.is_keras_seed]
    sources |= {blueprint.get_handle(info).op.name for info in seeds}
    diverging_updates = _find_diverging_updates(blueprint, is_effect, sources, is_synced=is_sum_over_all)
    return (diverging_updates.keys() | {info.name for info in seeds}) & set(writes)


def _find_diverging_updates(
    blueprint: Blueprint,
    is_update: Callable[[tf.Operation], bool],
    sources: Iterable[str],
    is_synced: Callable[[tf.Operation], bool],
    always_diverges: Callable[[tf.Operation], bool] = lambda _: False,
) -> dict[str, tf.Operation]:
    """Return, by variable name, one update of each variable whose updates may differ between replicas.

    Args:
        blueprint: blueprint of the model.
        is_update: predicate of operations that take a variable's handle: whether they change the variable.
        sources: names of operations whose results differ between replicas.
        is_synced: predicate of operations whose results are the same on all replicas for any inputs.
        always_diverges: predicate of updates whose values always differ between replicas.
    """
    # Assignments of initial values are not updates.
    initializer_names = blueprint.initializer_names
    updates = {}
    for info in blueprint.variables:
        handle = blueprint.get_handle(info)
        variable_updates = [
            operation
            for operation in handle.consumers()
            if operation.name not in initializer_names and is_update(operation)
        ]
        updates[info.name] = (handle, variable_updates)
    operations = blueprint.graph.get_operations()
    sources = frozenset(sources)
    # Names of operations whose results may differ; once a variable diverges, its handle is among them, for its value.
    diverging_ops = set(sources)
    diverging_updates: dict[str, tf.Operation] = {}
    # Repeat until nothing new diverges: a loop of the graph passes values to operations made earlier, and a variable to any.
    last_count = -1  # Differs from any count, so that the loop begins.
    while len(diverging_ops) > last_count:
        last_count = len(diverging_ops)
        for operation in operations:
            if (
                operation.name not in diverging_ops
                and _has_diverging_input(operation, diverging_ops)
                and not is_synced(operation)
            ):
                diverging_ops.add(operation.name)
        for name, (handle, variable_updates) in updates.items():
            for operation in variable_updates:
                # An update may itself be a source: a condition may draw the values that it assigns.
                is_source = operation.name in sources or always_diverges(operation)
                if name not in diverging_updates and (
                    is_source or _has_diverging_input(operation, diverging_ops, except_op=handle.op.name)
                ):
                    diverging_updates[name] = operation
                    diverging_ops.add(handle.op.name)
    return diverging_updates


def _is_optimizer_update(operation: tf.Operation) -> bool:
    return bool(operation.type.startswith(_OPTIMIZERS))


def _is_sum_by_model(operation: tf.Operation) -> bool:
    """Return whether an operation is a sum over all replicas that model_fn itself makes.

    A sum that an optimizer makes without CrossShardOptimizer does not count: it is not divided by the number of replicas.
    """
    return is_sum_over_all(operation) and not any(
        frame.name == _V1_SUM_FUNCTION
        or any(path_part in frame.filename.replace("\\", "/") for path_part in _KERAS_OPTIMIZER_PATHS)
        for frame in operation.traceback
    )


def _has_diverging_input(operation: tf.Operation, diverging_ops: Collection[str], except_op: str | None = None) -> bool:
    """Return whether an operation has an input from one of `diverging_ops` (names); inputs from `except_op` do not count."""
    return any(tensor.op.name in diverging_ops and tensor.op.name != except_op for tensor in operation.inputs)


def _find_draws(graph: tf.Graph) -> set[str]:
    """Return the names of operations that draw random values, themselves or in a function that they call."""
    graph_def = graph.as_graph_def()
    drawing_functions = find_functions(graph_def, _is_draw)  # Such as branches of conditions.
    return {
        node.name
        for node in graph_def.node
        if _is_draw(node) or any(name in drawing_functions for name in list_called_functions(node))
    }


def _is_draw(node: tf.compat.v1.NodeDef) -> bool:
    return "seed2" in node.attr  # All stateful random operations have it.
