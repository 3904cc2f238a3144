"""Effects that Keras leaves in a graph for nobody to fetch.

In a v1 program, what a training step changes hangs on its train_op. Keras 3, whose layers and optimizers assign to their variables
as they are called, returns nothing to hang there, and neither do the optimizers of tf_keras. Their assignments are part of the step
all the same. The layers of tf_keras behave as in the original: model_fn runs their `updates`.
"""

from typing import Any

from tpudata.estimator._optimizer import KERAS_UPDATES
from tpudata.estimator._variables import Blueprint

_WRITES = (
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
)
_MAKERS = ("/keras/src/", "/tf_keras/src/optimizers/")


def writes(blueprint: Blueprint) -> list[Any]:
    """Return the operations of a scratch graph that change variables, without those that give first values, in order."""
    making = {info.initializer for info in blueprint.variables} | {info.made_with for info in blueprint.variables}
    operations = blueprint.graph.get_operations()
    return [item for item in operations if item.type.startswith(_WRITES) and item.name not in making]


def keras_effects(blueprint: Blueprint) -> list[Any]:
    """Return the operations of a scratch graph by which Keras 3 and tf_keras' optimizers change variables, in order."""
    updates = {*blueprint.graph.get_collection(KERAS_UPDATES)}
    return [operation for operation in writes(blueprint) if operation.name in updates or _is_kerass(operation)]


def _is_kerass(operation: Any) -> bool:
    return any(maker in frame.filename.replace("\\", "/") for frame in operation.traceback for maker in _MAKERS)
