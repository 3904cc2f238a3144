"""A model_fn, called once in a scratch graph: its spec, its variables, and its writes of tf.summary."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError, ModelFnValueError
from tpudata.estimator.api.spec import EstimatorSpec, TPUEstimatorSpec
from tpudata.estimator.graph.keras_state import fresh_keras_state
from tpudata.estimator.state.blueprint import Blueprint, discover
from tpudata.estimator.tracing.effects import SUMMARY_SCOPE, summary_writes

ModelCall = Callable[[Any, Any, str], Any]


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model_fn in one mode, for one kind of input.

    Attributes:
        call_model: calls model_fn with (features, labels, mode).
        mode: a value of ModeKeys.
        specs: the `tf.TensorSpec` structures of (features, labels), as one replica gets them.
        seed: seed of initial values and random ops, or None.
        summaries_dir: folder of what model_fn gives to tf.summary; None: that writes nothing.
        blueprint: the scratch graph and the variables.
        step: placeholder of the scratch graph, int64: the steps done, as tf.summary gets them; None without a folder for it.
        record: placeholder, bool: whether tf.summary writes.
        summary_writes: the operations that write.
    """

    call_model: ModelCall
    mode: str
    specs: tuple[Any, Any]
    seed: int | None
    summaries_dir: str | None
    blueprint: Blueprint
    step: Any = None
    record: Any = None
    summary_writes: tuple[Any, ...] = ()

    @property
    def spec(self) -> Any:
        """The spec that model_fn returned; its tensors belong to the scratch graph."""
        return self.blueprint.result

    def build(self, features: Any, labels: Any) -> Any:
        """Call model_fn in the graph that is being built; returns its spec."""
        return build_spec(self.call_model, self.mode, self.seed, features, labels)

    def again(self) -> "TracedModel":
        """Return the model of another call of model_fn, in a new scratch graph.

        Raises:
            ModelFnValueError: it made other variables.
        """
        made = trace_model(self.call_model, self.mode, self.specs, self.seed, self.summaries_dir)
        names, before = ([info.name for info in one.blueprint.variables] for one in (made, self))
        if names != before:
            raise ModelFnValueError(
                "model_fn made other variables than before. It must make the same variables, in the same order, at every call."
            )
        # Its summaries go into the event file that is open.
        blueprint = dataclasses.replace(made.blueprint, writer_key=self.blueprint.writer_key)
        return dataclasses.replace(made, blueprint=blueprint)


def trace_model(
    call_model: ModelCall, mode: str, specs: tuple[Any, Any], seed: int | None, summaries_dir: str | None = None
) -> TracedModel:
    """Call model_fn in a scratch graph; the arguments are attributes of a TracedModel.

    Raises:
        ModelFnError: model_fn returned something else, or the spec of another mode.
    """
    found: dict[str, Any] = {}

    def build(features: Any, labels: Any) -> Any:
        if summaries_dir is None:
            return build_spec(call_model, mode, seed, features, labels)
        # tf.summary does nothing without a writer. This one writes nothing in the scratch graph itself.
        with tf.name_scope(SUMMARY_SCOPE):
            writer = tf.summary.create_file_writer(summaries_dir)
            step = tf.compat.v1.placeholder(tf.int64, [], name="step")
            record = tf.compat.v1.placeholder(tf.bool, [], name="record")
            next_step = step + 1
        with writer.as_default(step=next_step), tf.summary.record_if(record):
            spec = build_spec(call_model, mode, seed, features, labels)
        found.update(step=step, record=record, summary_writes=tuple(summary_writes(tf.compat.v1.get_default_graph())))
        return spec

    blueprint = discover(build, specs, seed)
    return TracedModel(call_model, mode, specs, seed, summaries_dir, blueprint, **found)


def build_spec(call_model: ModelCall, mode: str, seed: int | None, features: Any, labels: Any) -> Any:
    """Call model_fn in the graph that is being built; returns its spec.

    Raises:
        ModelFnError: it returned something else, or the spec of another mode.
    """
    tf.compat.v1.train.get_or_create_global_step()
    with fresh_keras_state(seed):
        spec = call_model(features, labels, mode)
    if not isinstance(spec, TPUEstimatorSpec | EstimatorSpec):
        raise ModelFnTypeError(
            f"model_fn must return a TPUEstimatorSpec or an EstimatorSpec, got {type(spec).__name__}."
        )
    if spec.mode != mode:
        raise ModelFnValueError(f"model_fn was called in mode {mode!r} and returned a spec of mode {spec.mode!r}.")
    return spec
