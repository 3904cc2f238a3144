"""Training on several devices: loops of steps that run as one program."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.devices.batches.feeder import Portion, StackIteration
from tpudata.devices.processes.topology import Topology
from tpudata.devices.spmd.mesh import get_first_copy, list_local_parts, replicate
from tpudata.devices.spmd.programs import Layout, LoopOutput, LoopProgram, compile_loop
from tpudata.estimator.api.spec import get_host_call
from tpudata.estimator.feeding.iteration import StepIteration
from tpudata.estimator.graph.structure import Structure
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.device_calls import lower_step, make_device_state
from tpudata.estimator.steps.replica_step import ReplicaStep
from tpudata.estimator.steps.train_step import LoopRequest, LoopResult, TrainStep
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Array

_REPLICA_SPEC = tf.TensorSpec([], tf.int32)
# Single steps need an entry for each position in a stack.
_MAX_CACHED_PORTIONS = 1024
# `finite` of a result without checked variables.
_UNCHECKED = np.ones(0, bool)


class DeviceTrainStep(TrainStep):
    """A training step of all replicas, and loops of it.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
    """

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, is_broadcast: bool) -> None:
        super().__init__(traced, topology, store, is_broadcast=is_broadcast)
        self._state = make_device_state(self, store)
        # Placed like the `goes_on` that a loop returns: another sharding would compile the loop a second time.
        self._true_on_devices = replicate(self._state.mesh, True)
        # The same few portions recur; without the cache, each call would place a NumPy array on all devices.
        self._place_portion = functools.lru_cache(_MAX_CACHED_PORTIONS)(
            lambda first, count: replicate(self._state.mesh, np.asarray([first, count], np.int32))
        )
        self._are_finite = jax.jit(
            lambda arrays: jax.numpy.stack([jax.numpy.isfinite(array).all() for array in arrays])
        )

    def run(self, iteration: StepIteration, request: LoopRequest) -> LoopResult:
        """Run steps, as described in TrainStep; the host writes the summaries of model_fn."""
        assert isinstance(iteration, StackIteration)  # The feed of several devices.
        fed_names = tuple(sorted(request.feeds))
        layout, loop = self._find_compiled(iteration.capacity, fed_names, request.is_single_step)
        feed_values = tuple(np.asarray(request.feeds[name]) for name in fed_names)
        outputs: list[LoopOutput] = []
        # The devices decide without the host whether a portion runs: none does after a loss of NaN. A single step always runs.
        goes_on = None if request.is_single_step else self._true_on_devices
        has_data = True
        remaining_steps = request.max_loop_steps
        # Without x64, jax would turn 64-bit numbers, such as the global step, into 32-bit ones.
        with jax.enable_x64(True), self._topology.peers.limit_wait():
            while remaining_steps and has_data:
                portion = iteration.take(remaining_steps)
                has_data = portion is not None
                if portion is not None:
                    outputs.append(self._dispatch(layout, loop, portion, goes_on, feed_values))
                    goes_on = outputs[-1].goes_on
                    remaining_steps -= portion.count
            return self._collect_result(outputs, has_data)

    def _dispatch(
        self,
        layout: Layout,
        loop: LoopProgram,
        portion: Portion,
        goes_on: jax.Array | None,
        feed_values: tuple[Array, ...],
    ) -> LoopOutput:
        """Start the steps of a portion; on several CPU devices, wait for them.

        Args:
            layout: layout of the loop's variables.
            loop: the compiled loop.
            portion: stacks of batches, and the range of steps in them to run.
            goes_on: bool on the devices: False after a loss of NaN in an earlier portion, so that no step runs; None for a single
                step.
            feed_values: values for the fed placeholders.
        """
        placed_portion = self._place_portion(portion.start, portion.count)
        stacks = tuple(portion.arrays)
        return self._state.run(layout, lambda *arrays: loop(*arrays, goes_on, placed_portion, stacks, feed_values))

    def _collect_result(self, outputs: list[LoopOutput], has_data: bool) -> LoopResult:
        """Join the outputs of portions into the result of the loop, and run host_call for each step."""
        global_steps, losses = [], []  # Arrays, one for each portion.
        last_output = None
        for output in outputs:  # Portions after a loss of NaN have no steps.
            portion_global_steps, portion_losses = output.read_report()
            if len(portion_global_steps):
                global_steps.append(portion_global_steps)
                losses.append(portion_losses)
                last_output = output
                self._run_host_call(output, len(portion_global_steps))
        if last_output is None:
            return LoopResult.make_empty(self.global_step, len(self.checked), has_data=has_data)
        fetched = {}
        if last_output.fetched:
            values = [self.replicas.join(list_local_parts(array)) for array in last_output.fetched]
            fetched = dict(zip(self.fetches.names, values, strict=True))
        return LoopResult(
            global_step=int(global_steps[-1][-1]),
            has_data=has_data,
            global_steps=_concatenate(global_steps),
            losses=_concatenate(losses),
            finite=_UNCHECKED if last_output.finite is None else last_output.finite,
            fetched=fetched,
        )

    def _run_host_call(self, output: LoopOutput, num_steps: int) -> None:
        """Run host_call, if there is one, for each of the first `num_steps` steps of an output, the ones that were done."""
        host_call = get_host_call(self.spec)
        if self._host_call is None or host_call is None:
            return
        _, host_tensors = host_call
        # For each tensor, the values [capacity, ...] of each replica.
        replica_stacks = [list_local_parts(stack, axis=1) for stack in output.step_values]
        for step_index in range(num_steps):
            tensors = [self.replicas.concatenate([stack[step_index] for stack in stacks]) for stacks in replica_stacks]
            self._host_call.update(tf.nest.pack_sequence_as(host_tensors, tensors))

    def compute_finiteness(self) -> npt.NDArray[np.bool_]:
        """Return whether all values of each variable of `checked` are finite (NumPy, bool [checked])."""
        if not self.checked:
            return _UNCHECKED
        with jax.enable_x64(True):  # Without x64, jax would turn float64 variables into float32.
            return np.asarray(get_first_copy(self._are_finite(self._state.shared.get_arrays(self.checked))))

    def _find_compiled(
        self, capacity: int, fed_names: tuple[str, ...], is_single_step: bool
    ) -> tuple[Layout, LoopProgram]:
        """Return the loop of up to `capacity` steps, or the single step, and the layout of its variables; compiled at first use.

        Args:
            capacity: number of steps in each stack of batches.
            fed_names: names of the placeholders that take values.
            is_single_step: whether it is a single step. A single step checks no variables, since the check would take as long as
                the step; the host calls `compute_finiteness` at intervals instead.
        """
        key = capacity, fed_names, is_single_step
        if is_single_step:
            return self._find_loop(key, lambda: self._compile(capacity=None, fed_names=fed_names, checked=()))
        return self._find_loop(key, lambda: self._compile(capacity, fed_names, self.checked))

    def _compile(
        self, capacity: int | None, fed_names: tuple[str, ...], checked: Sequence[str]
    ) -> tuple[Layout, LoopProgram]:
        """Compile a loop of steps, or a single step; return its variables' layout and the compiled program.

        Args:
            capacity: maximum number of steps, as many as a stack of batches has; None for a single step.
            fed_names: names of the placeholders that take values.
            checked: names of the variables whose values must be finite.
        """
        step = ReplicaStep(self._traced, self.fetches, self.replicas, fed_names)
        structure = Structure(self._traced.specs)
        num_batch_tensors = len(structure.specs)

        def run_replica(replica: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            """Run a step of one replica; `tensors` are its batch and the values of the fed placeholders."""
            batch, feeds = structure.pack(tensors[:num_batch_tensors]), tensors[num_batch_tensors:]
            # The step writes no tf.summary: the host does, after the loop, from tensors that it fetches from the last step.
            # model_fn may compute these tensors only while tf.summary records, so recording is on in every step.
            records_summaries = tf.constant(True)
            loss, fetched, host_tensors = step(replica, records_summaries, batch, self._variables_by_name, feeds)
            return [loss, *fetched, *tf.nest.flatten(host_tensors)]

        placeholders = [self.blueprint.graph.get_tensor_by_name(name) for name in fed_names]
        specs = [
            _REPLICA_SPEC,
            *structure.specs,
            *(tf.TensorSpec(placeholder.shape, placeholder.dtype) for placeholder in placeholders),
        ]
        per_replica_names = self._state.per_replica_names
        program, layout = lower_step(
            self._traced, run_replica, specs, self._variables_by_name, per_replica_names, step.writes
        )
        num_fetched = len(self.fetches.names)
        return layout, compile_loop(program, layout, self._state.mesh, capacity, checked, num_fetched)


def _concatenate(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
