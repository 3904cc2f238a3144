"""One training step on each replica: copied from the scratch graph, or traced again.

In both cases, a step only runs operations that a session would run for its loss, its train_op and the fetches.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.estimator.fetching.fetch_plan import Counterparts
from tpudata.estimator.fetching.replay import Replay, handles_on_replica, replica_number
from tpudata.estimator.graph.keras_effects import KERAS_UPDATES, keras_effects
from tpudata.estimator.graph.keras_state import fresh_keras_state
from tpudata.estimator.graph.random_graph import draw_by_step
from tpudata.estimator.state.blueprint import VariableInfo
from tpudata.estimator.state.reuse import reuse
from tpudata.estimator.state.variable_requests import Requests
from tpudata.estimator.steps.step_fetches import StepFetches
from tpudata.estimator.tracing.effects import SUMMARY_SCOPE, effects_of_training, summary_writes
from tpudata.estimator.tracing.replica_values import ReplicaValues
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.estimator.tracing.traced_step import Traced, build_needed, first_values

# Function of whether tf.summary writes (scalar bool), features and labels. It returns the loss (scalar float32), the fetched
# tensors, and those of host_call, as values of each replica.
ReplicaStep: TypeAlias = Callable[[Any, Any, Any], Any]


def copied_step(
    traced: TracedModel,
    fetches: StepFetches,
    replicas: ReplicaValues,
    variables: Mapping[str, Any],
    feeds: Mapping[str, Any],
    strategy: Any,
) -> ReplicaStep:
    """Return a step for one replica that copies the needed part of the scratch graph, without calling model_fn again.

    Args:
        traced: the model.
        fetches: fetches of the step.
        replicas: rules for values of replicas, which check the tensors of host_call.
        variables: the real variables by name.
        feeds: tensors that replace placeholders of the scratch graph, by name.
        strategy: strategy that runs the step.
    """
    blueprint, graph = traced.blueprint, traced.blueprint.graph
    with graph.as_default():
        loss = tf.reshape(tf.cast(traced.spec.loss, tf.float32), [])
        host = replicas.host_tensors(getattr(traced.spec, "host_call", None), "host_call")
    # The results of conditions are fetched, too, since a condition only runs what its fetched results need.
    kinds = (tf.resource, tf.variant)
    written = [tensor for item in traced.summary_writes for tensor in item.outputs if tensor.dtype not in kinds]
    replay = Replay(
        blueprint,
        (loss, fetches.tensors, host, written),
        [*effects_of_training(blueprint, traced.summary_writes), *fetches.operations],
        [traced.step, traced.record, *(graph.get_tensor_by_name(name) for name in feeds)],
        rewrite=functools.partial(draw_by_step, step=traced.step.op.name),
    )

    def run(record: Any, features: Any, labels: Any) -> Any:
        _set_shapes((features, labels), traced.specs)
        values = [tf.cast(variables["global_step"].read_value(), tf.int64), record, *feeds.values()]
        loss, fetched, host, written = replay((features, labels), handles_on_replica(variables), values)
        with tf.control_dependencies(written):
            return tf.identity(loss), fetched, host

    def step(record: Any, features: Any, labels: Any) -> Any:
        return strategy.run(run, args=(record, features, labels))

    return step


class RetracedStep:
    """Step for several replicas, which calls model_fn again for each, because they exchange values inside it.

    Args:
        traced: the model.
        variables: the real variables by name.
        by_key: infos and real variables, by the key of model_fn's request.
        replicas: rules for values of replicas, which check the tensors of host_call.
        strategy: strategy that runs the step.
        writer: writer of model_fn's tf.summary, or None.
    """

    def __init__(
        self,
        traced: TracedModel,
        variables: Mapping[str, Any],
        by_key: Mapping[Any, tuple[VariableInfo, Any]],
        replicas: ReplicaValues,
        strategy: Any,
        writer: Any,
    ) -> None:
        self._traced = traced
        self._variables = variables
        self._by_key = by_key
        self._replicas = replicas
        self._strategy = strategy
        self._writer = writer

    def step(self, fetches: StepFetches, kept: list[Any]) -> ReplicaStep:
        """Return the step with fetches.

        Args:
            fetches: fetches of the step.
            kept: list to which objects are added that must live as long as the function with the step.
        """
        counterparts = Counterparts(self._traced.blueprint, fetches.names, fetches.names_to_run)

        def step(record: Any, features: Any, labels: Any) -> Any:
            trace = functools.partial(self._trace, counterparts)
            steps_done = self._variables["global_step"].read_value()
            given = (record, features) if labels is None else (record, features, labels)
            return build_needed(trace, given, steps_done, kept)

        return step

    def _trace(self, counterparts: Counterparts, record: Any, features: Any, labels: Any = None) -> Traced:
        """Trace the step of all replicas into the default graph."""
        traced = self._traced
        requests = Requests()
        effects: list[Any] = []
        setup: list[Any] = []
        of_keras: list[str] = []
        numbers: dict[str, int] = {}

        def run(record: Any, features: Any, labels: Any) -> Any:
            _set_shapes((features, labels), traced.specs)
            with reuse(self._by_key, requests, traced.seed) as trace, self._summaries(record):
                spec = traced.build(features, labels)
                of_keras.extend(tf.compat.v1.get_collection(KERAS_UPDATES))
                setup.extend(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS))
            made = trace.operations()
            numbers.update(dict.fromkeys((item.name for item in made), replica_number()))
            fetched = counterparts.find(made, (features, labels))
            effects.extend(counterparts.find_operations(made))
            host = self._replicas.host_tensors(getattr(spec, "host_call", None), "host_call")
            # The loss waits for the update, and the test of the next step for the loss, so that steps never overlap.
            with tf.control_dependencies([tf.group(spec.train_op)]):
                loss = tf.reshape(tf.cast(spec.loss, tf.float32), [])
            return loss, fetched, host

        # Entered once around all replicas, which take turns: state of the process, such as Keras' and the warning filters, must be
        # restored in reverse order.
        with (
            fresh_keras_state(traced.seed),
            first_values(traced.blueprint, self._variables, self._strategy),
            _without_hint_of_v1_summaries(),
        ):
            results = self._strategy.run(run, args=(record, features, labels))
        graph = tf.compat.v1.get_default_graph()
        effects += [*summary_writes(graph, self._writer), *keras_effects(graph, of_keras)]
        return Traced(results, effects, setup, numbers)

    @contextlib.contextmanager
    def _summaries(self, record: Any) -> Iterator[None]:
        """Let tf.summary write during the trace of model_fn if `record` is true; the host writes v1 summaries."""
        if self._writer is None:
            yield
            return
        with tf.name_scope(SUMMARY_SCOPE):
            step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64) + 1
        with self._writer.as_default(step=step), tf.summary.record_if(record):
            yield


def _set_shapes(element: tuple[Any, Any], specs: tuple[Any, Any]) -> None:
    # A distributed iterator over finite data loses the number of rows, as a replica may get fewer.
    for tensor, spec in zip(tf.nest.flatten(element), tf.nest.flatten(specs), strict=True):
        if spec is not None:
            tensor.set_shape(spec.shape)


@contextlib.contextmanager
def _without_hint_of_v1_summaries() -> Iterator[None]:
    """Ignore TensorFlow's warning that v1 summaries are no-ops in a function."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot activate TF2 compatibility support for TF1 summary ops")
        yield
