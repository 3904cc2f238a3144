"""Evaluation: the loss of a batch, and metrics that add up over batches."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator._keras_state import fresh_keras_state
from tpudata.estimator._program import LocalVariables, Program, raw_variable
from tpudata.estimator._signature import row_weights
from tpudata.estimator._spec import EstimatorSpec, check_metrics
from tpudata.estimator._structure import Structure, batch_function, fetch_only
from tpudata.estimator._variables import discover, reuse


class EvalProgram(Program):
    """Evaluation steps, which update the metrics.

    `run(features, labels)` returns a batch's loss times its weight, and its weight (float32 scalars): the sum of
    features["weights"] (floats [batch]), or 1 where there are none. A batch of nothing but padding, whose loss may be NaN, adds
    0 and 0.

    Attributes:
        ignores_weights: whether features hold "weights" and model_fn does nothing with them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._host: HostMetrics | None = None
        if isinstance(self.spec, EstimatorSpec):
            self._read = ValueReader(lambda *batch: self.trace(*batch).eval_metric_ops or {}, self._specs)
        elif self.spec.eval_metrics is not None:
            self._host = HostMetrics(self.spec.eval_metrics, self.blueprint.graph, self._seed)
            self._read = self._host.read
        else:
            self._read = ValueReader(lambda: {}, ())
        self.ignores_weights = self._ignores_weights()
        self.run = batch_function(self._run, self._specs)

    def _ignores_weights(self) -> bool:
        weights = row_weights(self.blueprint.arguments[0])
        if weights is None or weights.consumers():
            return False
        metrics = getattr(self.spec, "eval_metrics", None) or getattr(self.spec, "eval_metric_ops", None)
        return not any(item is weights for item in tf.nest.flatten(metrics))

    def _run(self, features: Any, labels: Any) -> Any:
        def outputs(features: Any, labels: Any) -> tuple[Any, Any]:
            spec = self.trace(features, labels)
            loss = tf.reshape(tf.cast(spec.loss, tf.float32), [])
            weights = row_weights(features)
            weight = tf.constant(1.0) if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
            weighted = tf.math.multiply_no_nan(loss, weight), weight
            if self._host is None:
                with tf.control_dependencies(_updates(getattr(spec, "eval_metric_ops", None) or {})):
                    return tf.nest.map_structure(tf.identity, weighted), ()
            return weighted, tf.nest.map_structure(tf.convert_to_tensor, spec.eval_metrics[1])

        def step(features: Any, labels: Any) -> tuple[Any, Any]:
            return fetch_only(outputs, features, labels)  # type: ignore[no-any-return]

        weighted, tensors = self._strategy.run(step, args=(features, labels))
        if self._host is not None:
            self._host.update(tf.nest.map_structure(self._join, tensors))
        return tuple(self._strategy.reduce(tf.distribute.ReduceOp.SUM, item, axis=None) for item in weighted)

    def _join(self, value: Any) -> Any:
        parts = self._strategy.experimental_local_results(value)
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

    def reset(self) -> None:
        """Start the metrics anew."""
        self.local.reset()
        if self._host is not None:
            self._host.local.reset()

    def values(self) -> dict[str, Any]:
        """Return the metrics of the batches since `reset`, by name, as NumPy values."""
        return self._read()


class HostMetrics:
    """The metrics of a TPUEstimatorSpec: metric_fn runs outside the model, on the joined tensors of all replicas.

    Args:
        eval_metrics: as in TPUEstimatorSpec, with tensors of the scratch graph.
        graph: the scratch graph.
        seed: seed of random ops, or None.
    """

    def __init__(self, eval_metrics: tuple[Callable[..., Any], Any], graph: Any, seed: int | None) -> None:
        metric_fn, tensors = eval_metrics
        self._metric_fn = metric_fn
        self._seed = seed
        with graph.as_default():
            tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tensors)
        blueprint = discover(self._call, (specs,), seed)
        infos = list(blueprint.variables)
        self.local = LocalVariables(infos, blueprint.initial_values(infos))
        self.read = ValueReader(self._trace, (specs,))

    def update(self, tensors: Any) -> None:
        """Add a batch, in the tf.function that is being built; its updates run because they change variables."""
        self._trace(tensors)

    def _trace(self, tensors: Any) -> Any:
        with reuse(self.local.by_key, self._seed):
            return self._call(tensors)

    def _call(self, tensors: Any) -> Any:
        with fresh_keras_state(self._seed):
            metrics = self._metric_fn(**tensors) if isinstance(tensors, Mapping) else self._metric_fn(*tensors)
        check_metrics(metrics, "The result of eval_metrics' metric_fn")
        return metrics


class ValueReader:
    """Reads the values of metrics without adding a batch to them.

    The metrics are traced once more, in a graph where nothing runs unless it is fetched; then only their values are.

    Args:
        trace: takes an argument per entry of `specs`, returns the metrics by name.
        specs: nested structures of `tf.TensorSpec`; None stays None.
    """

    def __init__(self, trace: Callable[..., Mapping[str, Any]], specs: tuple[Any, ...]) -> None:
        self._trace = trace
        self._structure = Structure(specs)
        self._function: Callable[[], Mapping[str, Any]] | None = None

    def __call__(self) -> dict[str, Any]:
        """Return the values by name, as NumPy values."""
        if self._function is None:
            self._function = self._build()
        return {name: value.numpy() for name, value in self._function().items()}

    def _build(self) -> Callable[[], Mapping[str, Any]]:
        def values(*tensors: Any) -> dict[str, Any]:
            metrics = self._trace(*self._structure.pack(tensors))
            return {name: _value(metric) for name, metric in metrics.items()}

        wrapped = tf.compat.v1.wrap_function(values, self._structure.specs)
        if not wrapped.structured_outputs:
            return dict
        pruned: Callable[[], Mapping[str, Any]] = wrapped.prune([], wrapped.structured_outputs)
        return pruned


def _updates(metrics: Mapping[str, Any]) -> list[Any]:
    """Return the operations of the graph being built that add a batch to `metrics`."""
    graph = tf.compat.v1.get_default_graph()
    found = []
    for metric in metrics.values():
        if isinstance(metric, tuple | list):
            found.append(metric[1])
            continue
        # A Keras metric does not tell its update: it is what takes its variables' handles and is no mere read.
        handles = [graph.capture(raw_variable(variable).handle) for variable in metric.variables]
        for operation in graph.get_operations():
            takes = any(item is handle for item in operation.inputs for handle in handles)
            if takes and operation.type != "ReadVariableOp":
                found.append(operation)
    return found


def _value(metric: Any) -> Any:
    return tf.convert_to_tensor(metric[0] if isinstance(metric, tuple | list) else metric.result())
