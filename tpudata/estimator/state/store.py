"""The real variables of a model, shared by its modes, with the source of each value."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.processes.peers import Peers
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.host_copies import HostCopies, OnlyOnHost
from tpudata.estimator.state.warm_start import WarmStartSettings, read_warm_values
from tpudata.tensor_types import Array


class VariableStore:
    """Variables by their name in a checkpoint.

    Training, evaluation and prediction share them: the device has the parameters once, and an evaluation after training reads no
    file. `load` sets a mode's variables to a checkpoint, and does nothing if they already hold it.

    Attributes:
        copies: the variables' copies on the host.

    Args:
        variables: the variables by name; the store adds the variables that it makes.
        copies: the variables' copies on the host.
        peers: the processes that train together.
        warm_start: choice of the variables that start from another run's checkpoint if `load` gets none; or None.
    """

    def __init__(
        self,
        variables: dict[str, tf.Variable],
        copies: HostCopies,
        peers: Peers,
        warm_start: WarmStartSettings | None = None,
    ) -> None:
        self.copies = copies
        self._peers = peers
        self._warm_start = warm_start
        self._variables = variables
        # Source of each variable's value: a checkpoint, an initial value (with the warm start, if there is one), or None during
        # training.
        self._sources: dict[str, object] = {}

    def create(self, blueprint: Blueprint, infos: Sequence[VariableInfo]) -> dict[str, tf.Variable]:
        """Return the variables of `infos` by name; make missing ones with their initial values.

        Raises:
            ModelFnValueError: two modes of the model have variables of the same name with different shapes or dtypes.
        """
        missing_infos = [info for info in infos if info.name not in self._variables]
        # Without the broadcast, processes could begin with different initial values.
        values = self._peers.broadcast_values(blueprint.compute_initial_values(missing_infos))
        # With jax's devices, the host's copies never lie on a GPU, whose memory jax uses.
        with tf.device(None if isinstance(self.copies, OnlyOnHost) else "CPU:0"):
            for info in missing_infos:
                self._variables[info.name] = tf.Variable(values[info.name], trainable=info.is_trainable, name=info.name)
        # Assigning the same values again also records their sources, and that the host has the newest values.
        for info in missing_infos:
            self._assign(info.name, values[info.name], blueprint.identify_initial_value(info))
        for info in infos:
            variable = self._variables[info.name]
            initial_value = blueprint.get_initial_value(info)
            if variable.dtype != initial_value.dtype or not variable.shape.is_compatible_with(initial_value.shape):
                raise ModelFnValueError(
                    f"model_fn: modes must share their variables (got {info.name!r} as "
                    f"{initial_value.dtype.name}{initial_value.shape}, "
                    f"expected {variable.dtype.name}{variable.shape} as in another mode). Make it alike in all modes."
                )
        return {info.name: self._variables[info.name] for info in infos}

    def load(self, blueprint: Blueprint, infos: Sequence[VariableInfo], checkpoint: Checkpoint | None) -> None:
        """Set the variables of `infos` to `checkpoint`, or to their initial values if it is None.

        Initial values come from the warm start or, for variables that it does not choose, from `blueprint`. Variables that
        already have the value of this source are skipped.

        Raises:
            CheckpointError: the checkpoint, or the warm start's, lacks a variable, has it with a different shape or dtype, or is
                damaged.
            ValueError: the warm start renames a variable that it does not choose.
        """
        sources = {info.name: self._find_source(blueprint, info, checkpoint) for info in infos}
        stale_infos = [info for info in infos if self._sources.get(info.name) != sources[info.name]]
        if not stale_infos:
            return
        targets = {info.name: self._variables[info.name] for info in stale_infos}
        if checkpoint is not None:
            values = checkpoint.read(targets, {info.name: info.part for info in stale_infos})
        else:
            values = blueprint.compute_initial_values(stale_infos)
            if self._warm_start is not None:
                # `infos`, not `stale_infos`: the settings are checked against all variables.
                values |= read_warm_values(self._warm_start, infos, self._variables)
            values = self._peers.broadcast_values(values)
        for name in targets:
            self._assign(name, values[name], sources[name])

    def _find_source(self, blueprint: Blueprint, info: VariableInfo, checkpoint: Checkpoint | None) -> object:
        """Return the source of the value that `load` gives a variable; `load` skips variables whose source is equal already.

        It is the checkpoint, or the initial value's identity, with the warm start if there is one.
        """
        if checkpoint is not None:
            return checkpoint
        initial_value = blueprint.identify_initial_value(info)
        return initial_value if self._warm_start is None else (initial_value, self._warm_start)

    def restore(
        self, blueprint: Blueprint, infos: Sequence[VariableInfo], source: object, assign_values: Callable[[], None]
    ) -> None:
        """Set the variables of `infos` to their initial values, and then call `assign_values`, which sets some of them.

        Args:
            blueprint: source of the initial values.
            infos: the variables.
            source: source of the values that `assign_values` assigns; if all variables have it already, nothing changes.
            assign_values: function that assigns values.
        """
        if all(self._sources.get(info.name) == source for info in infos):
            return
        for name, value in blueprint.compute_initial_values(infos).items():
            self._assign(name, value, source=None)
        assign_values()
        for info in infos:
            self._sources[info.name] = source

    def _assign(self, name: str, value: tf.Tensor | Array, source: object) -> None:
        """Assign a value and record its source."""
        self._sources[name] = None  # After an error, the value is unknown.
        self._variables[name].assign(value)
        self.copies.mark_changed_on_host([name])
        self._sources[name] = source

    def has_source(self, names: Sequence[str], source: object) -> bool:
        """Return whether `source` is the recorded source of all these variables."""
        return all(self._sources.get(name) is source for name in names)

    def set_source(self, names: Sequence[str], source: object) -> None:
        """Record the source of the variables' values, such as a checkpoint; None if no source has them, as during training."""
        for name in names:
            self._sources[name] = source
