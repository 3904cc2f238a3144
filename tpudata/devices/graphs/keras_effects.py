"""Side effects of Keras in a graph that no fetched tensor depends on.

In a v1 program, train_op depends on everything that a training step changes. The layers and optimizers of Keras 3, and the
optimizers of tf_keras, assign to their variables when they are called, and return nothing that train_op could depend on. Their
assignments are part of the step nevertheless. The layers of tf_keras behave as in TensorFlow's Estimator: model_fn runs their
`updates`.
"""

import traceback
from collections.abc import Collection, Iterable

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import is_effect

# Collection of a graph with the names of the operations that Keras makes for CrossShardOptimizer, whatever their tracebacks show.
KERAS_UPDATES = "tpudata_keras_updates"
_KERAS_FOLDERS = ("/keras/src/", "/tf_keras/src/optimizers/")
_METRIC_FOLDERS = ("/keras/src/metrics/",)


class KerasConditions:
    """Base of graphs in which conditions and loops of Keras run all effects inside them, and others run what their results need."""

    @property
    def _add_control_dependencies(self) -> bool:
        """Whether the condition or loop that is being made runs all effects inside it; TensorFlow reads this from the graph."""
        return is_called_by_keras()

    @_add_control_dependencies.setter
    def _add_control_dependencies(self, value: bool) -> None:
        pass  # The graph's constructor sets a default.


def find_keras_effects(graph: tf.Graph, names: Iterable[str]) -> list[tf.Operation]:
    """Return the operations with side effects that Keras 3 and tf_keras' optimizers added to a graph, in order.

    Args:
        graph: graph of a step, whose operations have the tracebacks of the code that made them.
        names: names in the graph's collection KERAS_UPDATES; these operations count whatever their tracebacks show.
    """
    update_names = set(names)
    return [
        operation
        for operation in graph.get_operations()
        if is_effect(operation) and (operation.name in update_names or _is_made_by_keras(operation))
    ]


def is_called_by_keras() -> bool:
    """Return whether Keras 3 or an optimizer of tf_keras is among the callers."""
    return _has_caller_in(_KERAS_FOLDERS)


def is_called_by_keras_metric() -> bool:
    """Return whether a metric of Keras 3 is among the callers."""
    return _has_caller_in(_METRIC_FOLDERS)


def _has_caller_in(folders: Collection[str]) -> bool:
    return any(_is_in(frame.f_code.co_filename, folders) for frame, _ in traceback.walk_stack(None))


def _is_made_by_keras(operation: tf.Operation) -> bool:
    return any(_is_in(frame.filename, _KERAS_FOLDERS) for frame in operation.traceback)


def _is_in(path: str, folders: Collection[str]) -> bool:
    return any(folder in path.replace("\\", "/") for folder in folders)
