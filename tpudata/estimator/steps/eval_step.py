"""Evaluation: the loss of a batch, and its part of the metrics."""

import functools
from typing import Any

import tensorflow as tf

from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.feeding.signature import row_weights
from tpudata.estimator.fetching.replay import Replay
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.host_call import make_host_call, run_host_call
from tpudata.estimator.tracing.metrics import HostMetrics, MetricReader, metric_updates
from tpudata.estimator.tracing.traced_model import TracedModel


class EvalStep(Step):
    """Step of an evaluation: one batch, which updates the metrics. The arguments are those of Step.

    Attributes:
        ignores_weights: whether features contain "weights" that model_fn does not use.
    """

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast)
        self._host_call = make_host_call(traced, topology, self.replicas)
        self._host: HostMetrics | None = None
        metrics = getattr(traced.spec, "eval_metrics", None)
        if metrics is not None:
            with self.blueprint.graph.as_default():
                tensors = self.replicas.host_tensors(metrics, "eval_metrics")
            self._host = HostMetrics(metrics[0], tensors, 1 if broadcast else topology.num_replicas, traced.seed)
        weights = row_weights(self.blueprint.arguments[0])
        self.ignores_weights = weights is not None and not _uses(self.spec, weights)
        self._build()

    def _build(self) -> None:
        self._built_for = self.fetches.version
        spec, graph = self.spec, self.blueprint.graph
        updates: list[Any] = []
        if self._host is not None:
            self._reader = self._host.reader
        else:
            metrics = getattr(spec, "eval_metric_ops", None) or {}
            updates = metric_updates(metrics, self.blueprint)
            self._reader = MetricReader(metrics, self.blueprint, self.local, self._first_variables())
        weights = row_weights(self.blueprint.arguments[0])
        with graph.as_default():
            loss = tf.reshape(tf.cast(spec.loss, tf.float32), [])
            weight = tf.constant(1.0) if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
            # A batch that only contains padding may have a loss of NaN.
            weighted = tf.math.multiply_no_nan(loss, weight), weight
            of_metrics = self.replicas.host_tensors(getattr(spec, "eval_metrics", None), "eval_metrics")
            of_host_call = self.replicas.host_tensors(getattr(spec, "host_call", None), "host_call")
        wanted = weighted, of_metrics, of_host_call, self.fetches.tensors
        replay = Replay(self.blueprint, wanted, [*updates, *self.fetches.operations])
        self._writes = replay.writes
        self._run_batch = self.replicas.compiled(functools.partial(self._batch, replay), self._traced.specs)

    def _first_variables(self) -> dict[str, Any]:
        """Return the first replica's copies of the variables that checkpoints contain."""
        local_results = self._strategy.experimental_local_results
        return {name: local_results(variable)[0] for name, variable in self.variables.items()}

    def _batch(self, replay: Replay, features: Any, labels: Any) -> Any:
        weighted, of_metrics, of_host_call, fetched = self._replay(replay, (features, labels))
        if self._host is not None:
            self._host.update(self.replicas.concatenated(of_metrics))
        loss, weight = (self._strategy.reduce(tf.distribute.ReduceOp.SUM, item, axis=None) for item in weighted)
        loss = run_host_call(self._host_call, self.replicas, of_host_call, loss)
        return loss, weight, [self.replicas.joined(item) for item in fetched]

    def run(self, features: Any, labels: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Evaluate a batch.

        Args:
            features: features of a batch, for model_fn.
            labels: labels of the batch, or None.

        Returns:
            The batch's loss times its weight, its weight (float32 scalars, summed over the replicas), and the fetched tensors by
            name. The weight is the sum of features["weights"] (floats [batch]), or 1 if there are none.
        """
        if self._built_for != self.fetches.version:
            self._build()
        loss, weight, fetched = self._run_batch(features, labels)
        return loss, weight, dict(zip(self.fetches.names, fetched, strict=True))

    def flush(self) -> None:
        """Flush the summaries of host_call, so that readers see them."""
        if self._host_call is not None:
            self._host_call.flush()

    def reset(self) -> None:
        """Reset the metrics."""
        self.local.reset()
        if self._host is not None:
            self._host.local.reset()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that `values` returns."""
        return self._reader.names

    def values(self) -> dict[str, Any]:
        """Return the metrics of the batches since `reset`, by name, as NumPy values."""
        return self._reader.values()


def _uses(spec: Any, weights: Any) -> bool:
    """Return whether anything in model_fn uses the weights of rows."""
    metrics = getattr(spec, "eval_metrics", None) or getattr(spec, "eval_metric_ops", None)
    return bool(weights.consumers()) or any(item is weights for item in tf.nest.flatten(metrics))
