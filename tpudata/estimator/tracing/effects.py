"""Operations of a model_fn's graph that a training step runs for their effect.

A session of the original only ran operations needed by the fetches: an assignment, an assertion or an update of batch norm on which
train_op does not depend did not run. A train_op cannot depend on writes of `tf.summary` and updates of Keras, so these always run.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import needed_operations
from tpudata.devices.graphs.keras_effects import KERAS_UPDATES, keras_effects
from tpudata.estimator.state.blueprint import Blueprint

# Scope of operations that do not belong to the model, so that they take none of its names; it may be entered again.
OWN_SCOPE = "tpudata/"
CREATE_WRITER = "CreateSummaryFileWriter"
_WRITER_UPKEEP = (CREATE_WRITER, "FlushSummaryWriter")


def effects_of_training(blueprint: Blueprint, summary_writes: Iterable[Any] = ()) -> list[Any]:
    """Return the operations of model_fn's scratch graph that a step runs in addition to those for its results, in order.

    Args:
        blueprint: blueprint of the scratch graph.
        summary_writes: operations of the scratch graph that write summaries.
    """
    making = {name for info in blueprint.variables for name in (info.initializer, info.made_with)}
    of_keras = keras_effects(blueprint.graph, blueprint.graph.get_collection(KERAS_UPDATES))
    with blueprint.graph.as_default():
        train_op = tf.group(blueprint.result.train_op)
    return [*(item for item in of_keras if item.name not in making), *summary_writes, train_op]


def summary_writes(graph: Any) -> list[Any]:
    """Return the operations of a graph that write summaries of `tf.summary`, with the writer made in OWN_SCOPE."""
    made = [item for item in graph.get_operations() if item.type == "SummaryWriter"]
    handles = [item.outputs[0] for item in made if item.name.startswith(OWN_SCOPE)]
    return [item for handle in handles for item in handle.consumers() if item.type not in _WRITER_UPKEEP]


def results_of(operations: Iterable[Any]) -> list[Any]:
    """Return the results of operations, which must be fetched with them: a condition only runs what its fetched results need."""
    return [item for one in operations for item in one.outputs if item.dtype not in (tf.resource, tf.variant)]


def unused_updates(blueprint: Blueprint, fetched: Iterable[Any]) -> list[str]:
    """Return the names of the operations in the collection UPDATE_OPS of a scratch graph that a step does not run.

    Args:
        blueprint: blueprint of the scratch graph.
        fetched: operations that the step runs, together with those that they depend on.
    """
    updates = blueprint.graph.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    runs = needed_operations(fetched) if updates else ()
    operations = (getattr(item, "op", item) for item in updates)
    return [operation.name for operation in operations if operation not in runs]
