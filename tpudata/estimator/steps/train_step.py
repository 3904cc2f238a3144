"""Common base of the training steps on all devices."""

import abc
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.devices.graphs.graph_walk import find_needed_operations, is_effect
from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.spec import get_host_call
from tpudata.estimator.feeding.iteration import StepIteration
from tpudata.estimator.fetching.replay import Replay, run_on_host
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.differences import require_cross_shard
from tpudata.estimator.tracing.effects import CREATE_WRITER, list_training_effects, list_unused_updates
from tpudata.estimator.tracing.host_call import make_host_call
from tpudata.estimator.tracing.optimizer import reject_other_cross_shard
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Array

_log = logging.getLogger("tpudata")
_T = TypeVar("_T")


class LoopRequest(NamedTuple):
    """Request of a loop of steps.

    Attributes:
        max_loop_steps: maximum number of steps in the loop.
        records_summaries: whether `tf.summary` of model_fn writes in the last step.
        is_single_step: whether all calls of the run do a single step.
        feeds: values (NumPy) for placeholders of model_fn with a default, by name.
    """

    max_loop_steps: int
    records_summaries: bool = False
    is_single_step: bool = False
    feeds: Mapping[str, Array] = MappingProxyType({})


class LoopResult(NamedTuple):
    """Result of a loop of steps.

    Attributes:
        global_step: the global step that was reached.
        has_data: whether there was data for all requested steps.
        global_steps: int64 [steps], the global step after each of the steps that were done.
        losses: float32 [steps], the losses of the steps that were done.
        finite: bool [checked], whether all values of each checked variable are finite; empty, or all True, for a single step.
        fetched: values (tensors or NumPy) fetched from the last step, by name; zeros or absent if no step was done.
    """

    global_step: tf.Tensor | int
    has_data: tf.Tensor | bool
    global_steps: tf.Tensor | npt.NDArray[np.int64]
    losses: tf.Tensor | npt.NDArray[np.float32]
    finite: tf.Tensor | npt.NDArray[np.bool_]
    fetched: Mapping[str, tf.Tensor | Array]

    @classmethod
    def make_empty(cls, global_step: int, num_checked: int, *, has_data: bool) -> "LoopResult":
        """Return the result of a loop that took no step.

        Args:
            global_step: the global step that was reached.
            num_checked: number of checked variables.
            has_data: whether there was data for all requested steps.
        """
        global_steps, losses = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return cls(global_step, has_data, global_steps, losses, finite=np.ones(num_checked, bool), fetched={})


def _list_always_run(traced: TracedModel) -> list[tf.Operation]:
    """Return the operations that every training step runs, for their effect or for the loss."""
    loss = traced.spec.loss
    assert loss is not None  # Specs of training have one.
    return [*list_training_effects(traced.blueprint, traced.summary_writes), loss.op]


class TrainStep(Step, abc.ABC):
    """A training step, and loops of it.

    Attributes:
        checked: names of the trainable floating variables, whose values must remain finite.
        uses_tf_summary: whether model_fn writes with tf.summary.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
    """

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, is_broadcast: bool) -> None:
        super().__init__(traced, topology, store, is_broadcast=is_broadcast, list_always_run=_list_always_run)
        # TensorFlow's own CrossShardOptimizer does not sum here.
        reject_other_cross_shard(self.blueprint)
        if topology.is_sharded:
            require_cross_shard(self.blueprint)
        self.uses_tf_summary = bool(traced.summary_writes)
        self.checked = [
            info.name for info in self.saved if info.is_trainable and self.variables[info.name].dtype.is_floating
        ]
        # Cache of `_find_loop`: compiled loops by (key of the subclass, names of the fetches with side effects). It holds only
        # loops that return the tensors with the names `_loops_value_names`.
        self._loops: dict[object, Any] = {}
        self._loops_value_names: tuple[str, ...] = ()
        self._flush_writer: Replay | None = None
        if self.uses_tf_summary:
            self._open_writer()
        self._host_call = make_host_call(traced, topology, self.replicas)
        self._warn_of_unused_updates()

    def _open_writer(self) -> None:
        """Open the event file of model_fn's tf.summary, and build the operation that flushes it."""
        graph = self.blueprint.graph
        # All writes use the one writer that was made for model_fn.
        (handle_name,) = {
            tensor.name
            for write in self._traced.summary_writes
            for tensor in write.inputs
            if tensor.op.type == "SummaryWriter"
        }
        writer = graph.get_tensor_by_name(handle_name)
        create_operations = [operation for operation in writer.consumers() if operation.type == CREATE_WRITER]
        with graph.as_default():
            flush = tf.raw_ops.FlushSummaryWriter(writer=writer)
        run_on_host(Replay(self.blueprint, (), create_operations), self._variables_by_name)
        self._flush_writer = Replay(self.blueprint, (), [flush])

    @property
    def can_count_steps(self) -> bool:
        """Whether a step can change the global step."""
        return bool(self._find_counting_operations())

    @property
    def counts_every_step(self) -> bool:
        """Whether every step adds 1 to the global step, as the optimizers of v1 do."""
        operations = self._find_counting_operations()
        if [operation.type for operation in operations] != ["AssignAddVariableOp"]:
            return False
        _, increment = operations[0].inputs
        return bool(tf.get_static_value(increment) == 1)

    def _find_counting_operations(self) -> list[tf.Operation]:
        """Return the operations of a step that can change the global step, a variable of every model."""
        (handle_name,) = (info.handle_name for info in self.saved if info.name == "global_step")
        needed_operations = find_needed_operations(_list_always_run(self._traced))
        return [
            operation
            for operation in needed_operations
            if is_effect(operation) and any(tensor.name == handle_name for tensor in operation.inputs)
        ]

    def _warn_of_unused_updates(self) -> None:
        """Warn of operations in UPDATE_OPS that no training step runs, since train_op does not depend on them."""
        with self.blueprint.graph.as_default():
            tensors = self.replicas.convert_host_tensors(get_host_call(self.spec), "host_call")
        host_operations = [tensor.op for tensor in tf.nest.flatten(tensors)]
        names = list_unused_updates(self.blueprint, [*_list_always_run(self._traced), *host_operations])
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            _log.warning(
                "model_fn: train_op does not depend on the update %r%s in UPDATE_OPS, so training steps do not run it, as in the "
                "original TPUEstimator: batch norm keeps its first averages. Use train_op = tf.group(train_op, "
                "*tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)).",
                names[0],
                more,
            )

    @abc.abstractmethod
    def run(self, iteration: StepIteration, request: LoopRequest) -> LoopResult:
        """Run up to `request.max_loop_steps` steps; stop earlier if the data has ended, or after a step whose loss is NaN.

        Args:
            iteration: iteration over (features, labels) or features, of the Feed of these devices.
            request: the number of the steps, and what they record and take.
        """

    def _find_loop(self, key: object, build: Callable[[], _T]) -> _T:
        """Return the cached loop of `key` for the current fetches; call `build` to make it at the first request.

        Once requested, a tensor stays requested, so cached loops that return fewer tensors are no longer needed, and are dropped.
        """
        if self._loops_value_names != self.fetches.value_names:
            self._loops = {}
            self._loops_value_names = self.fetches.value_names
        loop_key = key, self.fetches.effect_names
        if loop_key not in self._loops:
            self._loops[loop_key] = build()
        loop: _T = self._loops[loop_key]
        return loop

    @abc.abstractmethod
    def compute_finiteness(self) -> npt.NDArray[np.bool_]:
        """Return whether all values of each variable of `checked` are finite (NumPy, bool [checked])."""

    def flush(self) -> None:
        """Flush the summaries of model_fn and host_call, so that readers see them."""
        if self._flush_writer is not None:
            run_on_host(self._flush_writer, self._variables_by_name)
        if self._host_call is not None:
            self._host_call.flush()
