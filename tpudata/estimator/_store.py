"""The real variables of a model, shared by its modes, and which checkpoint each one holds."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator._checkpoint import Checkpoint
from tpudata.estimator._errors import ModelFnValueError
from tpudata.estimator._variables import Blueprint, VariableInfo


class VariableStore:
    """Variables by their name in a checkpoint.

    Training, evaluation and prediction share them: the parameters lie on the device once, and evaluating what was just
    trained reads no file. `load` brings a mode's variables to a checkpoint and does nothing where they hold it.

    Args:
        strategy: the `tf.distribute.Strategy` under whose scope the variables are made.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._variables: dict[str, Any] = {}
        # What each variable holds: a checkpoint, the blueprint whose first values it has, or None: it is in training.
        self._holds: dict[str, object] = {}

    def create(self, blueprint: Blueprint, infos: Sequence[VariableInfo]) -> dict[str, Any]:
        """Return the variables of `infos` by name; make the missing ones, with their first values.

        Raises:
            ModelFnValueError: two modes of the model give one name to variables of different shape or dtype.
        """
        missing = [info for info in infos if info.name not in self._variables]
        values = blueprint.initial_values(missing)
        with self._strategy.scope():
            for info in missing:
                self._variables[info.name] = tf.Variable(
                    values[info.name],
                    trainable=info.trainable,
                    name=info.name,
                    synchronization=info.synchronization,
                    aggregation=info.aggregation,
                )
                self._holds[info.name] = blueprint
        for info in infos:
            variable = self._variables[info.name]
            initial = blueprint.graph.get_tensor_by_name(info.initial)
            if variable.dtype != initial.dtype or not variable.shape.is_compatible_with(initial.shape):
                raise ModelFnValueError(
                    f"model_fn makes the variable {info.name!r} as {initial.dtype.name}{initial.shape} in this mode and "
                    f"as {variable.dtype.name}{variable.shape} in another: the modes must share their variables."
                )
        return {info.name: self._variables[info.name] for info in infos}

    def load(self, blueprint: Blueprint, infos: Sequence[VariableInfo], checkpoint: Checkpoint | None) -> None:
        """Bring the variables of `infos` to `checkpoint`, or to their first values in `blueprint` where it is None.

        Raises:
            CheckpointError: the checkpoint lacks one of them or has it in another shape.
        """
        source: object = blueprint if checkpoint is None else checkpoint
        stale = [info for info in infos if self._holds.get(info.name) != source]
        if not stale:
            return
        targets = {info.name: self._variables[info.name] for info in stale}
        values = blueprint.initial_values(stale) if checkpoint is None else checkpoint.read(targets)
        for name, variable in targets.items():
            self._holds[name] = None
            variable.assign(values[name])
            self._holds[name] = source

    def mark(self, names: Sequence[str], holds: Checkpoint | None) -> None:
        """Note that the variables hold `holds` now; None: values that no file has."""
        for name in names:
            self._holds[name] = holds
