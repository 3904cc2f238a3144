"""The real variables of a model, shared by its modes, and which checkpoint each one holds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.warm_start import WarmStartSettings, warm_values

# Between the seeds of two replicas; a prime, unlike the distances that programs choose for their seeds.
_SEED_STEP = 999983


class VariableStore:
    """Variables by their name in a checkpoint.

    Training, evaluation and prediction share them: the parameters lie on the device once, and evaluating what was just
    trained reads no file. `load` brings a mode's variables to a checkpoint and does nothing if they hold it.

    Args:
        topology: its strategy's scope is the one under which the variables are made.
        warm_start: says which variables start from another run's checkpoint, where `load` is given none; or None.
    """

    def __init__(self, topology: Topology, warm_start: WarmStartSettings | None = None) -> None:
        self._strategy = topology.strategy
        self._peers = topology.peers
        self._first_replica = topology.peers.index * topology.local_replicas
        self._warm_start = warm_start
        self._variables: dict[str, Any] = {}
        # What each variable holds: a checkpoint, its first value (with the warm start, if there is one), or None while it is in
        # training.
        self._holds: dict[str, object] = {}

    def create(self, blueprint: Blueprint, infos: Sequence[VariableInfo]) -> dict[str, Any]:
        """Return the variables of `infos` by name; make the missing ones, with their first values.

        Raises:
            ModelFnValueError: two modes of the model give one name to variables of different shape or dtype.
        """
        missing = [info for info in infos if info.name not in self._variables]
        # Processes may draw different first values.
        values = self._peers.chiefs_values(blueprint.initial_values(missing))
        with self._strategy.scope():
            for info in missing:
                synchronization, aggregation = _kept_by_replicas(info, values[info.name].dtype)
                self._variables[info.name] = tf.Variable(
                    values[info.name],
                    trainable=info.trainable,
                    name=info.name,
                    synchronization=synchronization,
                    aggregation=aggregation,
                )
        for info in missing:
            self._assign(info.name, values[info.name], blueprint.first_value_of(info))
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
        """Bring the variables of `infos` to `checkpoint`, or to their first values if it is None.

        First values are those of the warm start, and else those of `blueprint`.

        Raises:
            CheckpointError: the checkpoint lacks one of them or has it in another shape.
        """
        sources = {info.name: self._source(blueprint, info, checkpoint) for info in infos}
        stale = [info for info in infos if self._holds.get(info.name) != sources[info.name]]
        if not stale:
            return
        targets = {info.name: self._variables[info.name] for info in stale}
        values = blueprint.initial_values(stale) if checkpoint is None else checkpoint.read(targets)
        if checkpoint is None and self._warm_start is not None:
            values |= warm_values(self._warm_start, infos, self._variables)
        if checkpoint is None:
            values = self._peers.chiefs_values(values)
        for name in targets:
            self._assign(name, values[name], sources[name])

    def _source(self, blueprint: Blueprint, info: VariableInfo, checkpoint: Checkpoint | None) -> object:
        if checkpoint is not None:
            return checkpoint
        first = blueprint.first_value_of(info)
        return first if self._warm_start is None else (first, self._warm_start)

    def restore(
        self, blueprint: Blueprint, infos: Sequence[VariableInfo], source: object, restore: Callable[[], None]
    ) -> None:
        """Set the variables of `infos` to what `restore` assigns, and the others to their initial values.

        Args:
            blueprint: gives the first values.
            infos: the variables.
            source: what they hold then; nothing is done if they do already.
            restore: assigns values.
        """
        if all(self._holds.get(info.name) == source for info in infos):
            return
        for name, value in blueprint.initial_values(infos).items():
            self._assign(name, value, None)
        restore()
        for info in infos:
            self._holds[info.name] = source

    def _assign(self, name: str, value: Any, holds: object) -> None:
        variable = self._variables[name]
        self._holds[name] = None
        if _is_keras_seed(name, variable.dtype):
            replicas = self._strategy.experimental_local_results(variable)
            for replica, own in enumerate(replicas, self._first_replica):
                own.assign(np.asarray(value) + np.array([replica * _SEED_STEP, 0], variable.dtype.as_numpy_dtype))
        else:
            variable.assign(value)
        self._holds[name] = holds

    def holds(self, names: Sequence[str], source: object) -> bool:
        """Return whether the variables hold what `mark` noted last as `source`."""
        return all(self._holds.get(name) is source for name in names)

    def mark(self, names: Sequence[str], holds: object) -> None:
        """Note that the variables hold `holds` now, such as a checkpoint; None: values that no file has."""
        for name in names:
            self._holds[name] = holds


def _is_keras_seed(name: str, dtype: Any) -> bool:
    """Return whether a variable is a random state of Keras 3: if it were equal everywhere, all replicas would draw the same."""
    return name.rpartition("/")[2].startswith("seed_generator_state") and dtype.is_integer


def _kept_by_replicas(info: VariableInfo, dtype: Any) -> tuple[Any, Any]:
    """Return the synchronization and the aggregation of a variable.

    What model_fn assigns on each replica becomes one value: where it does not say how, the mean, or of integers the first.
    """
    aggregation = tf.VariableAggregation
    if _is_keras_seed(info.name, dtype):
        return tf.VariableSynchronization.ON_READ, aggregation.ONLY_FIRST_REPLICA
    if info.aggregation is not aggregation.NONE:
        return info.synchronization, info.aggregation
    has_mean = dtype.is_floating or dtype.is_complex
    return info.synchronization, aggregation.MEAN if has_mean else aggregation.ONLY_FIRST_REPLICA
