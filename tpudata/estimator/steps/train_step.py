"""Training: the steps of a traced model_fn, many in one call."""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.feeding.iteration import Iteration
from tpudata.estimator.fetching.replay import Replay, handles_on_replica
from tpudata.estimator.graph.graph_walk import is_effect, needed_operations
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.replica_step import ReplicaStep, RetracedStep, copied_step
from tpudata.estimator.steps.step import Step
from tpudata.estimator.steps.train_loop import LoopResult, TrainLoop, are_finite, raises_at_end
from tpudata.estimator.tracing.differences import require_cross_shard
from tpudata.estimator.tracing.effects import CREATE_WRITER, effects_of_training, unused_updates
from tpudata.estimator.tracing.host_call import make_host_call
from tpudata.estimator.tracing.optimizer import reject_other_cross_shard
from tpudata.estimator.tracing.traced_model import TracedModel

_log = logging.getLogger("tpudata")
_MOST_CONSTANTS = 16


def _run_by_every_step(traced: TracedModel) -> list[Any]:
    return [*effects_of_training(traced.blueprint, traced.summary_writes), traced.spec.loss.op]


class TrainStep(Step):
    """A training step, and loops of it. The arguments are those of Step.

    Attributes:
        checked: names of the trainable variables, whose values must remain finite.
        uses_tf_summary: whether model_fn writes with tf.summary.
        keeps_v1_summaries: whether tf.compat.v1.summary makes v1 summaries; in a tf.function with a writer of tf.summary, it uses
            that writer.
    """

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast, own_operations=_run_by_every_step)
        reject_other_cross_shard(self.blueprint)
        if topology.is_sharded:
            require_cross_shard(self.blueprint)
        # With one replica, a step is copied from the scratch graph instead of traced again.
        self._is_copied = topology.num_replicas == 1
        self.uses_tf_summary = bool(traced.summary_writes)
        self.keeps_v1_summaries = self._is_copied or not self.uses_tf_summary
        self.checked = [
            info.name for info in self.saved if info.trainable and self.variables[info.name].dtype.is_floating
        ]
        self._writer: Any = None
        self._flush_writer: Replay | None = None
        if self.uses_tf_summary and self._is_copied:
            self._open_writer()
        elif self.uses_tf_summary:
            self._writer = tf.summary.create_file_writer(traced.summaries_dir)
        self._host_call = make_host_call(traced, topology, self.replicas)
        self._by_key = {info.key: (info, self.variables[info.name]) for info in self.saved} | self.local.by_key
        self._warn_of_unused_updates()
        self._loops: dict[Any, Callable[..., Any]] = {}
        self._loops_give: tuple[str, ...] = ()
        self._kept: list[Any] = []
        self._constants: dict[Any, Any] = {}
        self._are_finite: Any = None
        self._newest: tuple[Any, Callable[..., Any]] | None = None

    def _open_writer(self) -> None:
        """Open the event file of model_fn's tf.summary, and build the operation that flushes it."""
        graph = self.blueprint.graph
        (handle,) = {
            tensor.name
            for item in self._traced.summary_writes
            for tensor in item.inputs
            if tensor.op.type == "SummaryWriter"
        }
        writer = graph.get_tensor_by_name(handle)
        create = [item for item in writer.consumers() if item.type == CREATE_WRITER]
        with graph.as_default():
            flush = tf.raw_ops.FlushSummaryWriter(writer=writer)
        self._on_host(Replay(self.blueprint, (), create))
        self._flush_writer = Replay(self.blueprint, (), [flush])

    def _on_host(self, replay: Replay) -> None:
        with tf.device("CPU:0"):
            tf.function(lambda: replay((), handles_on_replica(self._by_name)), autograph=False)()

    @property
    def counts_steps(self) -> bool:
        """Whether a step can change the global step."""
        return bool(self._counting())

    def _counts_all(self) -> bool:
        """Return whether every step adds 1 to the global step, as by the optimizers of v1."""
        found = self._counting()
        return [item.type for item in found] == ["AssignAddVariableOp"] and tf.get_static_value(found[0].inputs[1]) == 1

    def _counting(self) -> list[Any]:
        """Return the operations of a step that can change the global step."""
        (handle,) = (info.handle for info in self.saved if info.name == "global_step")
        run = needed_operations(_run_by_every_step(self._traced))
        return [item for item in run if is_effect(item) and any(tensor.name == handle for tensor in item.inputs)]

    def _warn_of_unused_updates(self) -> None:
        with self.blueprint.graph.as_default():
            tensors = self.replicas.host_tensors(getattr(self.spec, "host_call", None), "host_call")
        host = [item.op for item in tf.nest.flatten(tensors)]
        names = unused_updates(self.blueprint, [*_run_by_every_step(self._traced), *host])
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            _log.warning(
                "model_fn: train_op does not depend on the update %r%s in UPDATE_OPS, so training steps do not run it, as in the "
                "original TPUEstimator: batch norm keeps its first averages. Use train_op = tf.group(train_op, "
                "*tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)).",
                names[0],
                more,
            )

    def run(
        self,
        iteration: Iteration,
        limit: int,
        record: bool = False,
        *,
        is_step: bool = False,
        feeds: Mapping[str, Any] = MappingProxyType({}),
    ) -> LoopResult:
        """Run up to `limit` steps; stop before the end of the data and after a loss of NaN.

        Args:
            iteration: iteration over (features, labels) or features.
            limit: largest number of steps.
            record: whether `tf.summary` of model_fn writes in the last step.
            is_step: whether all calls of the run do a single step; without a loop, a call takes 0.29 ms instead of 0.31.
            feeds: values for placeholders with a default, by name, with one replica.

        """
        loop = self._compiled(iteration, is_step, tuple(sorted(feeds)))
        values = [tf.constant(feeds[name]) for name in sorted(feeds)]
        try:
            step, has_data, steps, losses, finite, fetched = loop(
                *iteration.tensors, self._constant(limit), self._constant(record), *values
            )
        except tf.errors.OutOfRangeError:  # Such as repeat() of nothing.
            if not (is_step and raises_at_end(iteration)):
                raise
            none = np.zeros(0, np.int64), np.zeros(0, np.float32)
            return LoopResult(self.global_step, False, *none, np.ones(0, bool), {})
        return LoopResult(step, has_data, steps, losses, finite, dict(zip(self.fetches.names, fetched, strict=True)))

    def _constant(self, value: int | bool) -> Any:
        """Return a value as a tensor; most loops are like the one before."""
        key = type(value), value
        if key not in self._constants:
            if len(self._constants) > _MOST_CONSTANTS:
                self._constants.clear()
            self._constants[key] = tf.constant(value)
        return self._constants[key]

    def finite(self) -> Any:
        """Return whether all values of each variable of `checked` are finite (NumPy, bool [checked])."""
        if self._are_finite is None:
            variables = [self.variables[name] for name in self.checked]
            self._are_finite = tf.function(lambda: are_finite(variables), autograph=False).get_concrete_function()
        return self._are_finite().numpy()

    def _compiled(self, iteration: Iteration, is_step: bool, fed: tuple[str, ...]) -> Callable[..., Any]:
        """Return the loop over such an iterator, or the single step, which is traced at the first call."""
        asked = iteration, self.fetches.version, is_step, fed
        # A comparison of specs at each loop would cost time.
        if self._newest is None or self._newest[0] != asked:
            # A loop built for these tensors remains valid, as they have the same names in every trace.
            if self._loops_give != self.fetches.values:
                self._loops_give = self.fetches.values
                self._loops = {}
                self._kept = []
            key = iteration.spec, iteration.end, iteration.is_endless, self.fetches.effects, is_step, fed
            if key not in self._loops:
                placeholders = [self.blueprint.graph.get_tensor_by_name(name) for name in fed]
                self._loops[key] = self._loop().compile(iteration, self.fetches.tensors, placeholders, is_step=is_step)
            self._newest = asked, self._loops[key]
        return self._newest[1]

    def _loop(self) -> TrainLoop:
        return TrainLoop(
            self._replica_step,
            self._topology,
            self.replicas,
            self._host_call,
            self.variables,
            self.checked,
            has_labels=self._traced.specs[1] is not None,
            counts_all=self._counts_all(),
        )

    def _replica_step(self, feeds: Mapping[str, Any]) -> ReplicaStep:
        if self._is_copied:
            return copied_step(self._traced, self.fetches, self.replicas, self._by_name, feeds, self._strategy)
        retraced = RetracedStep(self._traced, self._by_name, self._by_key, self.replicas, self._strategy, self._writer)
        return retraced.step(self.fetches, self._kept)

    def flush(self) -> None:
        """Flush the summaries of model_fn and host_call, so that readers see them."""
        if self._writer is not None:
            self._writer.flush()
        if self._flush_writer is not None:
            self._on_host(self._flush_writer)
        if self._host_call is not None:
            self._host_call.flush()
