"""Operations of a model_fn's graph that a training step runs for their side effects.

A session of TensorFlow's Estimator only ran operations needed by the fetches: an assignment, an assertion or an update of batch
norm on which train_op does not depend did not run. A train_op cannot depend on writes of `tf.summary` and
updates of Keras, so these always run.
"""

from collections.abc import Iterable

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import find_needed_operations
from tpudata.devices.graphs.keras_effects import KERAS_UPDATES, find_keras_effects
from tpudata.devices.graphs.library import list_called_functions
from tpudata.estimator.state.blueprint import Blueprint

# Name scope of operations that tpudata adds, so that they do not change the names of the model's operations.
OWN_SCOPE = "tpudata/"
CREATE_WRITER = "CreateSummaryFileWriter"
_WRITER_UPKEEP = (CREATE_WRITER, "FlushSummaryWriter")


def list_training_effects(blueprint: Blueprint, summary_writes: Iterable[tf.Operation] = ()) -> list[tf.Operation]:
    """Return the operations that a training step runs for their side effects, in order.

    Args:
        blueprint: blueprint of the scratch graph.
        summary_writes: operations of the scratch graph that write summaries.
    """
    # Assignments of initial values are not updates.
    initializer_names = blueprint.initializer_names
    keras_updates = find_keras_effects(blueprint.graph, blueprint.graph.get_collection(KERAS_UPDATES))
    with blueprint.graph.as_default():
        train_op = tf.group(blueprint.result.train_op)
    return [
        *(operation for operation in keras_updates if operation.name not in initializer_names),
        *summary_writes,
        train_op,
    ]


def find_summary_writes(graph: tf.Graph) -> list[tf.Operation]:
    """Return the operations of a graph that write summaries of `tf.summary`, with the writer made in OWN_SCOPE."""
    writers = [operation for operation in graph.get_operations() if operation.type == "SummaryWriter"]
    handles = [writer.outputs[0] for writer in writers if writer.name.startswith(OWN_SCOPE)]
    return [operation for handle in handles for operation in handle.consumers() if operation.type not in _WRITER_UPKEEP]


def find_lost_writes(graph: tf.Graph, writes: Iterable[tf.Operation], *, is_on_devices: bool) -> list[tf.Operation]:
    """Return the loops, branches and functions whose writes of summaries do not run, of the operations that write.

    Without automatic control dependencies, a branch or the body of a loop runs only what its results need, and a write has no
    result. The functions of tf.function run their writes, except on devices, which cannot write.

    Args:
        graph: the scratch graph.
        writes: its operations that write summaries, as `find_summary_writes` returns them.
        is_on_devices: whether the steps run on devices.
    """
    functions = graph.as_graph_def().library.function
    # `tf.summary` itself puts its write into a branch, which depends on whether this step's summaries are written.
    writing_names = {
        function.signature.name
        for function in functions
        if any(node.op.startswith("Write") for node in function.node_def)
    }

    def is_lost(operation: tf.Operation) -> bool:
        if operation.type in ("If", "StatelessIf"):
            return writing_names.isdisjoint(list_called_functions(operation.node_def))
        return not operation.type.startswith("Write") and (
            is_on_devices or not operation.type.endswith("PartitionedCall")
        )

    return list(filter(is_lost, writes))


def list_results(operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
    """Return the outputs of operations, except handles of resources and variants.

    Callers fetch these in addition to running the operations: a `tf.cond` only runs what its fetched outputs need.
    """
    return [
        tensor
        for operation in operations
        for tensor in operation.outputs
        if tensor.dtype not in (tf.resource, tf.variant)
    ]


def list_unused_updates(blueprint: Blueprint, fetched: Iterable[tf.Operation]) -> list[str]:
    """Return the names of the operations in the collection UPDATE_OPS of a scratch graph that a step does not run.

    Args:
        blueprint: blueprint of the scratch graph.
        fetched: operations that the step fetches.
    """
    updates = blueprint.graph.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    needed_operations = find_needed_operations(fetched) if updates else ()
    operations = (getattr(update, "op", update) for update in updates)  # The collection also has tensors.
    return [operation.name for operation in operations if operation not in needed_operations]
