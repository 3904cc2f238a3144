"""One batch on all devices, for evaluation and prediction."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from tpudata.devices.spmd.lowering import lower
from tpudata.devices.spmd.mesh import local_parts
from tpudata.devices.spmd.programs import Layout, compile_call
from tpudata.devices.spmd.variables import DeviceState
from tpudata.estimator.fetching.replay import Replay, handles_of
from tpudata.estimator.graph.structure import Structure
from tpudata.estimator.steps.replica_step import replica_graph
from tpudata.estimator.tracing.differences import differing_variables
from tpudata.estimator.tracing.traced_model import TracedModel

_NUMBER = tf.TensorSpec([], tf.int32)
_STEP = tf.TensorSpec([], tf.int64)


class BatchCall:
    """Part of a scratch graph, computed by each replica on its rows of a batch.

    Attributes:
        writes: names of the variables that it may change.

    Args:
        traced: the model.
        specs: specs of a replica's arguments of model_fn.
        wanted: tensors of the scratch graph to compute.
        updates: operations of the scratch graph to run.
        state: the variables on the devices.
    """

    def __init__(
        self,
        traced: TracedModel,
        specs: tuple[Any, ...],
        wanted: Sequence[Any],
        updates: Sequence[Any],
        state: DeviceState,
    ) -> None:
        replay = Replay(
            traced.blueprint, list(wanted), updates, [traced.step, traced.replica], rewrite=replica_graph(traced)
        )
        structure = Structure(specs)

        def function(replica: Any, *tensors: Any) -> list[Any]:
            *batch, number = tensors
            results: list[Any] = replay(structure.pack(batch), handles_of(state.variables), [number, replica])
            return results

        program = lower(function, [_NUMBER, *structure.specs, _STEP], state.variables)
        differing = differing_variables(traced.blueprint, replay.writes)
        self.writes = replay.writes
        self._state = state
        self._layout = Layout.of(program, state.own_names, differing)
        self._compiled = compile_call(program, self._layout, state.mesh)
        self._number = 0

    def __call__(self, batch: Any) -> list[list[Any]]:
        """Run a batch.

        Args:
            batch: structure of stacks [1, replicas, ...], like `specs`.

        Returns:
            For each of `wanted` the values (NumPy) of this process's replicas.
        """
        stacks = tuple(item for item in tf.nest.flatten(batch) if item is not None)
        number = np.int64(self._number)
        self._number += 1
        with jax.enable_x64(True):
            (results,) = self._state.run(self._layout, lambda *arrays: self._compiled(*arrays, stacks, (number,)))
            return [local_parts(item) for item in results]
