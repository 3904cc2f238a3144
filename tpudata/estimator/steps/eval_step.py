"""Evaluation: the loss of a batch, and its part of the metrics."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.spec import ModelSpec, get_eval_metrics, get_host_call, get_metric_ops
from tpudata.estimator.feeding.signature import find_row_weights
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.batch_step import BatchCallBuilder, BatchStep, PlainCallBuilder
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.host_call import make_host_call
from tpudata.estimator.tracing.metrics import HostMetrics, MetricReader, find_metric_updates
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Array, Arrays, Tensors


class EvalStep(BatchStep):
    """Step of an evaluation: one batch, which updates the metrics.

    Attributes:
        warns_of_padding: whether features contain "weights" that model_fn does not use, and no warning has been logged yet.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
        builder_class: class of the builder of calls on the step's devices.
    """

    def __init__(
        self,
        traced: TracedModel,
        topology: Topology,
        store: VariableStore,
        *,
        is_broadcast: bool,
        builder_class: Callable[[Step, VariableStore], BatchCallBuilder] = PlainCallBuilder,
    ) -> None:
        super().__init__(traced, topology, store, is_broadcast=is_broadcast, builder_class=builder_class)
        self._host_call = make_host_call(traced, topology, self.replicas)
        self._host_metrics: HostMetrics | None = None
        eval_metrics = get_eval_metrics(traced.spec)
        if eval_metrics is not None:
            metric_fn, _ = eval_metrics
            with self.blueprint.graph.as_default():
                tensors = self.replicas.convert_host_tensors(eval_metrics, "eval_metrics")
            # If all replicas get the same rows, only the first replica's tensors count.
            num_concatenated = 1 if is_broadcast else topology.num_replicas
            self._host_metrics = HostMetrics(metric_fn, tensors, num_concatenated, traced.seed)
        features, _ = self.blueprint.arguments
        weights = find_row_weights(features)
        self.warns_of_padding = weights is not None and not _uses_weights(self.spec, weights)
        # Reader of eval_metric_ops, and the blueprint that it belongs to.
        self._reader: MetricReader | None = None
        self._reader_blueprint: Blueprint | None = None

    def plan_outputs(self) -> tuple[Tensors, list[tf.Operation]]:
        """Return the tensors that a replica computes for a batch, and the operations that it runs.

        The tensors are (loss times weight, weight) (float32 scalars), the arguments of metric_fn, the arguments of host_fn, and the
        fetched tensors.
        """
        metrics = get_metric_ops(self.spec)
        # The host updates eval_metrics, in `_finish`.
        updates = [] if self._host_metrics is not None else find_metric_updates(metrics, self.blueprint)
        features, _ = self.blueprint.arguments
        weights = find_row_weights(features)
        with self.blueprint.graph.as_default():
            loss = tf.reshape(tf.cast(self.spec.loss, tf.float32), [])
            weight = tf.constant(1.0) if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
            # A batch that only contains padding may have a loss of NaN.
            weighted_loss = tf.math.multiply_no_nan(loss, weight)
            metric_tensors = self.replicas.convert_host_tensors(get_eval_metrics(self.spec), "eval_metrics")
            host_call_tensors = self.replicas.convert_host_tensors(get_host_call(self.spec), "host_call")
        outputs = (weighted_loss, weight), metric_tensors, host_call_tensors, self.fetches.tensors
        return outputs, [*updates, *self.fetches.operations]

    def _finish(self, values: list[list[Array]]) -> list[list[Array]]:
        """Add a batch to eval_metrics, run host_call, and return the losses, the weights and the fetched values.

        Args:
            values: for each tensor of `plan_outputs`, the values of the replicas.
        """
        losses, weights, *other_values = values
        remaining = iter(other_values)
        _, metric_tensors, host_call_tensors, _ = self._outputs

        def take_values(tensors: Tensors) -> Arrays:
            """Return the next remaining values, one for each of `tensors`, in the structure of `tensors`."""
            return tf.nest.map_structure(lambda _: self.replicas.concatenate(next(remaining)), tensors)

        # In the order of `plan_outputs`; the fetched values remain.
        metric_values = take_values(metric_tensors)
        host_call_values = take_values(host_call_tensors)
        if self._host_metrics is not None:
            self._host_metrics.update(metric_values)
        if self._host_call is not None:
            # In a tf.function, which has one replica, the loss waits for host_call.
            first_loss, *other_losses = losses
            losses = [self._host_call.update(host_call_values, first_loss), *other_losses]
        return [losses, weights, *remaining]

    def run(self, features: Tensors, labels: Tensors) -> tuple[np.float32, np.float32, dict[str, Array]]:
        """Evaluate a batch.

        Args:
            features: features of a batch, for model_fn.
            labels: labels of the batch, or None.

        Returns:
            The batch's loss times its weight, its weight (float32 scalars, summed over the replicas), and the fetched values by
            name. The weight is the sum of features["weights"] (floats [batch]); without them, 1 for each replica.
        """
        (losses, weights), fetched = self._compute(features, labels)
        return np.sum(losses, dtype=np.float32), np.sum(weights, dtype=np.float32), fetched

    def flush(self) -> None:
        """Flush the summaries of host_call, so that readers see them."""
        if self._host_call is not None:
            self._host_call.flush()

    def reset(self) -> None:
        """Reset the metrics."""
        self.reset_local()
        if self._host_metrics is not None:
            self._host_metrics.local.reset()

    def _find_metric_reader(self) -> MetricReader:
        """Return the reader of the metrics for the current trace of model_fn."""
        if self._host_metrics is not None:
            return self._host_metrics.reader
        if self._reader is None or self._reader_blueprint is not self.blueprint:
            self._reader = MetricReader(get_metric_ops(self.spec), self.blueprint, self.local, self.variables)
            self._reader_blueprint = self.blueprint
        return self._reader

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that `read_metrics` returns."""
        return self._find_metric_reader().names

    def read_metrics(self) -> dict[str, Array]:
        """Return the metrics of the batches since `reset`, by name, as NumPy values."""
        self.copy_to_host(self._variables_by_name)
        return self._find_metric_reader().read_values()


def _uses_weights(spec: ModelSpec, weights: tf.Tensor) -> bool:
    """Return whether an operation or a metric of model_fn uses the weights of rows."""
    metrics = get_eval_metrics(spec) or get_metric_ops(spec)
    return bool(weights.consumers()) or any(tensor is weights for tensor in tf.nest.flatten(metrics))
