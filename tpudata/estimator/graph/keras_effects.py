"""Effects that Keras leaves in a graph without anything that depends on them.

In a v1 program, what a training step changes hangs on its train_op. Keras 3, whose layers and optimizers assign to their variables
as they are called, returns nothing to hang there, and neither do the optimizers of tf_keras. Their assignments are part of the step
all the same. The layers of tf_keras behave as in the original: model_fn runs their `updates`.
"""

import traceback
from collections.abc import Iterable
from typing import Any

from tpudata.estimator.graph.graph_walk import is_effect

# Collection of the names of operations that CrossShardOptimizer had Keras make, also in a merge of the replicas: that runs in
# another thread, so the traceback of its operations does not show Keras.
KERAS_UPDATES = "tpudata_keras_updates"
_MAKERS = ("/keras/src/", "/tf_keras/src/optimizers/")


class KerasConditions:
    """Base of graphs in which conditions and loops that Keras makes run all effects inside them; others run what they return."""

    @property
    def _add_control_dependencies(self) -> bool:
        """Whether all effects run within a condition or a loop that is made now: TensorFlow asks its graph."""
        return called_by_keras()

    @_add_control_dependencies.setter
    def _add_control_dependencies(self, value: bool) -> None:
        pass  # The graph's constructor sets a default.


def keras_effects(graph: Any, names: Iterable[str]) -> list[Any]:
    """Return the operations of a graph by which Keras 3 and tf_keras' optimizers change something, in order.

    Args:
        graph: the graph.
        names: what the collections KERAS_UPDATES of its traces hold.
    """
    updates = set(names)
    return [item for item in graph.get_operations() if is_effect(item) and (item.name in updates or _is_kerass(item))]


def called_by_keras() -> bool:
    """Return whether Keras 3 or an optimizer of tf_keras is among the callers."""
    return any(_is_maker(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(None))


def _is_kerass(operation: Any) -> bool:
    return any(_is_maker(frame.filename) for frame in operation.traceback)


def _is_maker(path: str) -> bool:
    return any(maker in path.replace("\\", "/") for maker in _MAKERS)
