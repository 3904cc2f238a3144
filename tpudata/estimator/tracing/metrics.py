"""Metrics accumulated over batches: their updates, variables and values."""

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from tpudata.estimator.api.metrics import Metric, check_metrics
from tpudata.estimator.fetching.replay import Replay, fill_tables, make_handle_getter
from tpudata.estimator.graph.structure import make_batch_function
from tpudata.estimator.state.blueprint import Blueprint, trace_function
from tpudata.estimator.state.local_variables import LocalVariables
from tpudata.estimator.tracing.host_call import call_host_function
from tpudata.estimator.tracing.replica_values import concatenate_specs
from tpudata.tensor_types import Array, Tensors


class HostMetrics:
    """The metrics of a TPUEstimatorSpec: metric_fn runs outside the model, on the concatenated tensors of all replicas.

    Attributes:
        local: variables of the metrics.
        reader: reader of their values.

    Args:
        metric_fn: as in TPUEstimatorSpec.
        tensors: tensors of the scratch graph for metric_fn, as on one replica.
        num_replicas: number of replicas whose tensors are concatenated along the first axis.
        seed: seed of random ops, or None.
    """

    def __init__(
        self, metric_fn: Callable[..., Mapping[str, Metric]], tensors: Tensors, num_replicas: int, seed: int | None
    ) -> None:
        self._metric_fn = metric_fn
        self._seed = seed
        specs = concatenate_specs(tensors, num_replicas)
        blueprint = trace_function(self._call_metric_fn, (specs,), seed)
        self.local = LocalVariables(blueprint, blueprint.variables)
        metrics = blueprint.result  # The result of metric_fn: metrics by name.
        self.reader = MetricReader(metrics, blueprint, self.local, other_variables={})
        self._replay = Replay(blueprint, (), find_metric_updates(metrics, blueprint))
        self._update_now = make_batch_function(self._add_update, (specs,))
        fill_tables(blueprint, self.local.by_name)

    def update(self, tensors: Tensors) -> None:
        """Add a batch to the metrics.

        Args:
            tensors: arguments of metric_fn: NumPy arrays, which are added now, or tensors of the tf.function that is being built,
                which adds them whenever it runs.
        """
        if tf.inside_function():
            self._add_update(tensors)
        else:
            self._update_now(tensors)

    def _add_update(self, tensors: Tensors) -> None:
        """Add the updates of the metrics to the tf.function that is being built."""
        self._replay((tensors,), make_handle_getter(self.local.by_name))

    def _call_metric_fn(self, tensors: Tensors) -> Mapping[str, Metric]:
        """Return the metrics that metric_fn makes from its tensors, checked."""
        metrics = call_host_function(self._metric_fn, tensors, self._seed)
        check_metrics(metrics, "The result of eval_metrics' metric_fn")
        return metrics


class MetricReader:
    """Reader of the current values of metrics.

    Attributes:
        names: names of the metrics.

    Args:
        metrics: metrics by name, in the blueprint's scratch graph.
        blueprint: blueprint of the function that made the metrics.
        local: variables of the metrics.
        other_variables: other variables that the values may need, by name.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        blueprint: Blueprint,
        local: LocalVariables,
        other_variables: Mapping[str, tf.Variable],
    ) -> None:
        self.names = tuple(metrics)
        with blueprint.graph.as_default():
            tensors = {name: _get_value(metric) for name, metric in metrics.items()}
        replay = Replay(blueprint, tensors)
        variables = {**other_variables, **local.by_name}
        self._read = tf.function(lambda: replay((), make_handle_getter(variables)), autograph=False)

    def read_values(self) -> dict[str, Array]:
        """Return the values (NumPy) by name of the metric."""
        return {name: value.numpy() for name, value in self._read().items()}


def find_metric_updates(metrics: Mapping[str, Metric], blueprint: Blueprint) -> list[tf.Operation]:
    """Return the operations of the scratch graph that update `metrics` with a batch."""
    updates: list[tf.Operation] = []
    for metric in metrics.values():
        if isinstance(metric, tuple | list):
            _, update = metric  # An operation or a tensor.
            updates.append(getattr(update, "op", update))
        else:
            updates += _find_keras_updates(metric.variables, blueprint)
    return updates


def _find_keras_updates(variables: Iterable[object], blueprint: Blueprint) -> Iterable[tf.Operation]:
    """Yield the operations that update a Keras metric's variables: all that use these variables except reads and initializers.

    Unlike a metric of v1, a Keras metric does not name its update.
    """
    names = {get_raw_variable(variable).op.name for variable in variables}
    initializer_names = blueprint.initializer_names
    for info in blueprint.variables:
        if info.name not in names:
            continue
        for operation in blueprint.get_handle(info).consumers():
            is_read = operation.type in ("ReadVariableOp", "VarIsInitializedOp")
            if not is_read and operation.name not in initializer_names:
                yield operation


def _get_value(metric: Metric) -> tf.Tensor:
    """Return the tensor of a metric's current value, in the default graph."""
    return tf.convert_to_tensor(metric[0] if isinstance(metric, tuple | list) else metric.result())


def get_raw_variable(variable: object) -> tf.Variable:
    """Return the tf.Variable of a Keras 3 variable; a tf.Variable is returned unchanged."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
