"""Calls on several devices for a batch of an evaluation or a prediction, and functions shared with training."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np
import tensorflow as tf

from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.devices.spmd.mesh import list_local_parts
from tpudata.devices.spmd.programs import Layout, compile_call
from tpudata.devices.spmd.variables import DeviceState, DeviceVariables
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.graph.structure import Structure
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.batch_step import BatchCall, Finish
from tpudata.estimator.steps.replica_step import make_replica_rewrite
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.differences import find_diverging_variables
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Array, Specs, Tensors

# Index of the replica.
_REPLICA_SPEC = tf.TensorSpec([], tf.int32)
# Index of the call, on which random draws depend as they do on the step in training.
_CALL_SPEC = tf.TensorSpec([], tf.int64)


class DeviceCallBuilder:
    """Builder of the calls of a step on several devices.

    Args:
        step: the step; from now on, the devices hold its variables that have a separate value on each replica.
        store: store of the other variables.
    """

    def __init__(self, step: Step, store: VariableStore) -> None:
        self._state = make_device_state(step, store)

    def build(
        self,
        traced: TracedModel,
        specs: tuple[Specs, ...],
        outputs: Sequence[tf.Tensor],
        updates: Sequence[tf.Operation],
        finish: Finish,
    ) -> BatchCall:
        """Return a call that computes `outputs` and runs `updates` on all devices (see BatchCallBuilder.build).

        The call takes stacks [1, replicas, ...]; `finish` runs on the host, outside the compiled program.
        """
        state = self._state
        passed_tensors = [traced.step, traced.replica]  # Tensors whose values are passed instead of computed.
        replay = Replay(traced.blueprint, list(outputs), updates, passed_tensors, rewrite=make_replica_rewrite(traced))
        structure = Structure(specs)

        def compute(replica: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            """Compute the outputs of one replica; `tensors` are its rows of the batch and the index of the call."""
            *batch, call_index = tensors
            values: list[tf.Tensor] = replay(
                structure.pack(batch), make_handle_getter(state.variables), [call_index, replica]
            )
            return values

        argument_specs = [_REPLICA_SPEC, *structure.specs, _CALL_SPEC]
        program, layout = lower_step(
            traced, compute, argument_specs, state.variables, state.per_replica_names, replay.writes
        )
        compiled = compile_call(program, layout, state.mesh)
        # They take the place of the step, so that each call draws different random numbers.
        call_indices = itertools.count()

        def run(*batch: Tensors) -> list[list[Array]]:
            """Run the compiled program on the stacks of a batch, and finish its results on the host."""
            stacks = tuple(stack for stack in tf.nest.flatten(batch) if stack is not None)
            call_index = np.int64(next(call_indices))
            # Without x64, jax would turn 64-bit numbers, such as the call's index, into 32-bit ones.
            with jax.enable_x64(True):
                # `compile_call` adds the replica's index.
                results = state.run(layout, lambda *arrays: compiled(*arrays, stacks, (call_index,)))
                return finish([list_local_parts(result) for result in results])

        return BatchCall(replay.writes, run)

    def read_rows(self, feature: jax.Array) -> list[Array]:
        """Return a feature of a batch as NumPy arrays, one for each replica."""
        return [rows[0] for rows in list_local_parts(feature, axis=1)]


def make_device_state(step: Step, store: VariableStore) -> DeviceState:
    """Return the state of a step's variables on the devices, and set `step.local_copies` to its part with the local variables.

    A value is transferred when a program first needs it.
    """
    assert isinstance(store.copies, DeviceVariables)  # With jax's devices, a store has these copies.
    state = DeviceState(store.copies, step.variables, step.local.by_name)
    step.local_copies = state.per_replica
    return state


def lower_step(
    traced: TracedModel,
    function: Callable[..., list[tf.Tensor]],
    specs: Sequence[tf.TensorSpec],
    variables: Mapping[str, tf.Variable],
    per_replica_names: Collection[str],
    writes: Collection[str],
) -> tuple[ReplicaProgram, Layout]:
    """Lower a function of a replica's index and tensors; return the program and the layout of its variables.

    Args:
        traced: the model that the function is part of.
        function: function of an int32 scalar and of tensors that reads and writes variables, and returns a list of tensors.
        specs: specs of its arguments, with static shapes.
        variables: the variables by name.
        per_replica_names: names of the variables with a separate value on each replica.
        writes: names of the variables that the function may change.

    Raises:
        ModelFnValueError: TensorFlow cannot lower the function.
    """
    program = lower(function, specs, variables)
    return program, Layout.make(program, per_replica_names, find_diverging_variables(traced.blueprint, writes))
