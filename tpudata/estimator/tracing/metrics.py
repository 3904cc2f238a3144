"""Evaluation: the loss of a batch, and metrics that add up over batches."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.spec import check_metrics
from tpudata.estimator.feeding.signature import row_weights
from tpudata.estimator.fetching.replay import Replay, handles_on_replica
from tpudata.estimator.graph.keras_state import fresh_keras_state
from tpudata.estimator.state.local_variables import LocalVariables
from tpudata.estimator.state.variables import Blueprint, discover
from tpudata.estimator.tracing.program import Program, concatenated, joined_shape, raw_variable


class EvalProgram(Program):
    """Evaluation steps, which update the metrics.

    `run(features, labels)` returns a batch's loss times its weight, and its weight (float32 scalars): the sum of
    features["weights"] (floats [batch]), or 1 where there are none. A batch of nothing but padding, whose loss may be NaN, adds
    0 and 0. On several replicas these are sums over their batches.

    Attributes:
        ignores_weights: whether features hold "weights" and model_fn does nothing with them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._host: HostMetrics | None = None
        self._host_call = self._make_host_call()
        if getattr(self.spec, "eval_metrics", None) is not None:
            with self.blueprint.graph.as_default():
                tensors = self._to_be_joined(self.spec.eval_metrics[1], "eval_metrics")
            replicas = 1 if self._broadcast else self._topology.num_replicas
            self._host = HostMetrics(self.spec.eval_metrics[0], tensors, replicas, self._seed)
        self.ignores_weights = self._ignores(row_weights(self.blueprint.arguments[0]))
        self._renew()

    def _renew(self) -> None:
        weights = row_weights(self.blueprint.arguments[0])
        updates: list[Any] = []
        if self._host is not None:
            self._reader = self._host.reader
        else:
            metrics = getattr(self.spec, "eval_metric_ops", None) or {}
            updates = metric_updates(metrics, self.blueprint)
            self._reader = MetricReader(metrics, self.blueprint, self.local, self._first_variables())
        with self.blueprint.graph.as_default():
            loss = tf.reshape(tf.cast(self.spec.loss, tf.float32), [])
            weight = tf.constant(1.0) if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
            weighted = tf.math.multiply_no_nan(loss, weight), weight
            metrics_tensors: Any = ()
            if self._host is not None:
                metrics_tensors = self._to_be_joined(self.spec.eval_metrics[1], "eval_metrics")
            host_tensors = self._host_tensors(self.spec)
        wanted = weighted, metrics_tensors, host_tensors, self._fetched_tensors()
        step = Replay(self.blueprint, wanted, [*updates, *self._operations_to_run()])
        self._writes = step.writes
        self._run_batch = self._batch_function(functools.partial(self._run, step), self._specs)

    def run(self, features: Any, labels: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Evaluate a batch; returns the two scalars, and the tensors to fetch by name."""
        loss, weight, fetched = self._run_batch(features, labels)
        return loss, weight, dict(zip(self._fetched, fetched, strict=True))

    def flush(self) -> None:
        """Make what host_call wrote visible to readers."""
        if self._host_call is not None:
            self._host_call.flush()

    def _ignores(self, weights: Any) -> bool:
        if weights is None or weights.consumers():
            return False
        metrics = getattr(self.spec, "eval_metrics", None) or getattr(self.spec, "eval_metric_ops", None)
        return not any(item is weights for item in tf.nest.flatten(metrics))

    def _first_variables(self) -> dict[str, Any]:
        """Return the variables that checkpoints keep, as the first replica has them."""
        local_results = self._strategy.experimental_local_results
        return {name: local_results(variable)[0] for name, variable in self.variables.items()}

    def _run(self, step: Replay, features: Any, labels: Any) -> Any:
        weighted, tensors, host_tensors, fetched = self._replay(step, (features, labels))
        if self._host is not None:
            self._host.update(tf.nest.map_structure(lambda value: concatenated(self.join(value)), tensors))
        loss, weight = (self._strategy.reduce(tf.distribute.ReduceOp.SUM, item, axis=None) for item in weighted)
        return self._call_host(host_tensors, loss), weight, [self._joined(item) for item in fetched]

    def reset(self) -> None:
        """Start the metrics anew."""
        self.local.reset()
        if self._host is not None:
            self._host.local.reset()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What `values` returns."""
        return self._reader.names

    def values(self) -> dict[str, Any]:
        """Return the metrics of the batches since `reset`, by name, as NumPy values."""
        return self._reader.values()


class HostMetrics:
    """The metrics of a TPUEstimatorSpec: metric_fn runs outside the model, on the joined tensors of all replicas.

    Args:
        metric_fn: as in TPUEstimatorSpec.
        tensors: what it is given, as one replica has it, of the scratch graph.
        replicas: how many of them are joined along the first axis.
        seed: seed of random ops, or None.
    """

    def __init__(self, metric_fn: Callable[..., Any], tensors: Any, replicas: int, seed: int | None) -> None:
        self._metric_fn = metric_fn
        self._seed = seed
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(joined_shape(tensor.shape, replicas), tensor.dtype), tensors
        )
        blueprint = discover(self._call, (specs,), seed)
        self.local = LocalVariables(blueprint, blueprint.variables, tf.distribute.get_strategy())
        self.reader = MetricReader(blueprint.result, blueprint, self.local, {})
        self._update = Replay(blueprint, (), metric_updates(blueprint.result, blueprint))
        tables = blueprint.graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
        if tables:
            fill = Replay(blueprint, (), tables)
            with tf.device("CPU:0"):
                tf.function(lambda: fill((), handles_on_replica(self.local.by_name)), autograph=False)()

    def update(self, tensors: Any) -> None:
        """Add a batch, in the tf.function that is being built; its updates run because they change variables."""
        self._update((tensors,), handles_on_replica(self.local.by_name))

    def _call(self, tensors: Any) -> Any:
        with fresh_keras_state(self._seed):
            metrics = self._metric_fn(**tensors) if isinstance(tensors, Mapping) else self._metric_fn(*tensors)
        check_metrics(metrics, "The result of eval_metrics' metric_fn")
        return metrics


class MetricReader:
    """Reads the values of metrics without adding a batch to them.

    Attributes:
        names: of the metrics.

    Args:
        metrics: by name, of the blueprint's scratch graph.
        blueprint: of the function that made them.
        local: their variables.
        others: other variables that their values may need, by name.
    """

    def __init__(
        self, metrics: Mapping[str, Any], blueprint: Blueprint, local: LocalVariables, others: Mapping[str, Any]
    ) -> None:
        self.names = tuple(metrics)
        self._local = local
        with blueprint.graph.as_default():
            values = {name: _value(metric) for name, metric in metrics.items()}
        replay = Replay(blueprint, values)
        variables = {**others, **local.joined}
        self._read = tf.function(lambda: replay((), handles_on_replica(variables)), autograph=False)

    def values(self) -> dict[str, Any]:
        """Return the values by name, as NumPy values."""
        self._local.join()
        return {name: value.numpy() for name, value in self._read().items()}


def metric_updates(metrics: Mapping[str, Any], blueprint: Blueprint) -> list[Any]:
    """Return the operations of the scratch graph that add a batch to `metrics`."""
    found: list[Any] = []
    for metric in metrics.values():
        if isinstance(metric, tuple | list):
            found.append(getattr(metric[1], "op", metric[1]))
        else:
            found += _keras_updates(metric.variables, blueprint)
    return found


def _keras_updates(variables: Iterable[Any], blueprint: Blueprint) -> Iterable[Any]:
    # A Keras metric does not tell its update: it is what takes its variables' handles, and is no mere read or their making.
    names = {raw_variable(variable).op.name for variable in variables}
    infos = [info for info in blueprint.variables if info.name in names]
    making = {info.initializer for info in infos}
    for info in infos:
        for operation in blueprint.graph.get_tensor_by_name(info.handle).consumers():
            if operation.type not in ("ReadVariableOp", "VarIsInitializedOp") and operation.name not in making:
                yield operation


def _value(metric: Any) -> Any:
    return tf.convert_to_tensor(metric[0] if isinstance(metric, tuple | list) else metric.result())
