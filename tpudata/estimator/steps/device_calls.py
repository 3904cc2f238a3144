"""Calls on several devices: one batch of an evaluation or a prediction, and what training shares with it."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.devices.spmd.mesh import local_parts
from tpudata.devices.spmd.programs import Layout, compile_call
from tpudata.devices.spmd.variables import DeviceState, DeviceVariables
from tpudata.estimator.fetching.replay import Replay, capture_handles
from tpudata.estimator.graph.structure import Structure
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.batch_step import BatchCall, Finish
from tpudata.estimator.steps.replica_step import replica_graph
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.differences import find_diverging_variables
from tpudata.estimator.tracing.traced_model import TracedModel

_NUMBER = tf.TensorSpec([], tf.int32)
_STEP = tf.TensorSpec([], tf.int64)


class DeviceCalls:
    """Builder of the calls of a step on several devices.

    Args:
        step: the step, which then reads its own variables from the devices.
        store: store of the others.
    """

    def __init__(self, step: Step, store: VariableStore) -> None:
        self._state = device_state(step, store)

    def build(
        self, traced: TracedModel, specs: Any, wanted: Sequence[Any], updates: Sequence[Any], finish: Finish
    ) -> BatchCall:
        """Return a call of stacks [1, replicas, ...], otherwise as described in BatchCalls."""
        state, cuts = self._state, [traced.step, traced.replica]
        replay = Replay(traced.blueprint, list(wanted), updates, cuts, rewrite=replica_graph(traced))
        structure = Structure(specs)

        def function(replica: Any, *tensors: Any) -> list[Any]:
            *batch, number = tensors
            results: list[Any] = replay(structure.pack(batch), capture_handles(state.variables), [number, replica])
            return results

        flat = [_NUMBER, *structure.specs, _STEP]
        program, layout = lower_step(traced, function, flat, state.variables, state.per_replica_names, replay.writes)
        compiled = compile_call(program, layout, state.mesh)
        numbers = itertools.count()

        def run(*batch: Any) -> list[list[Any]]:
            stacks = tuple(item for item in tf.nest.flatten(batch) if item is not None)
            number = np.int64(next(numbers))
            with jax.enable_x64(True):
                (results,) = state.run(layout, lambda *arrays: compiled(*arrays, stacks, (number,)))
                return finish([local_parts(item) for item in results])

        return BatchCall(replay.writes, run)

    def rows(self, feature: Any) -> list[Any]:
        """Return a feature of a batch as NumPy arrays, one for each replica."""
        return [part[0] for part in local_parts(feature, axis=1)]


def device_state(step: Step, store: VariableStore) -> DeviceState:
    """Return the variables of a step on the devices, and let the step read its own variables from there."""
    assert isinstance(store.copies, DeviceVariables)  # The store is of devices.
    state = DeviceState(store.copies, step.variables, step.local.by_name)
    step.own = state.per_replica
    return state


def lower_step(
    traced: TracedModel,
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    variables: Mapping[str, Any],
    own: Collection[str],
    writes: Collection[str],
) -> tuple[ReplicaProgram, Layout]:
    """Lower a function of a replica's number and tensors, and lay out its variables.

    Args:
        traced: the model that the function is part of.
        function: the function, which reads and writes variables.
        specs: specs of its arguments.
        variables: the variables by name.
        own: names of those with a value of each replica.
        writes: names of those that it may change.

    Raises:
        ModelFnValueError: TensorFlow cannot lower the function.
    """
    program = lower(function, specs, variables)
    return program, Layout.make(program, own, find_diverging_variables(traced.blueprint, writes))
