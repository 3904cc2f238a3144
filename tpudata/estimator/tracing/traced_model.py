"""A model_fn, called once in a scratch graph: its spec, variables, and writes of tf.summary."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.devices.graphs.replica_context import replica_context
from tpudata.estimator.api.spec import ModelSpec, check_spec
from tpudata.estimator.state.blueprint import Blueprint, trace_function
from tpudata.estimator.tracing.effects import OWN_SCOPE, find_summary_writes
from tpudata.tensor_types import Specs, Tensors
from tpudata.tensorflow_internals import control_flow_ops

# Function of (features, labels) that calls model_fn in the traced mode.
ModelCall: TypeAlias = Callable[[Tensors, Tensors], ModelSpec]


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model_fn in one mode, for one kind of input.

    Attributes:
        call_model: function of (features, labels) that calls model_fn.
        mode: a value of ModeKeys.
        specs: the `tf.TensorSpec` structures of one replica's (features, labels).
        seed: seed of initial values and random ops, or None.
        summaries_dir: folder of model_fn's tf.summary; None for no summaries.
        num_replicas: number of replicas on devices, one of which is traced; None for plain TensorFlow.
        blueprint: the scratch graph and the variables.
        step: int64 placeholder of the scratch graph, the number of steps done, for random draws and tf.summary.
        replica: int32 placeholder, the index of the replica, from 0.
        records_summaries: bool placeholder, whether tf.summary writes; None without summaries_dir.
        summary_writes: the operations that write summaries.
    """

    call_model: ModelCall
    mode: str
    specs: tuple[Specs, Specs]
    seed: int | None
    summaries_dir: str | None
    num_replicas: int | None
    blueprint: Blueprint
    step: tf.Tensor
    replica: tf.Tensor
    records_summaries: tf.Tensor | None = None
    summary_writes: tuple[tf.Operation, ...] = ()

    @property
    def spec(self) -> ModelSpec:
        """The spec that model_fn returned; its tensors belong to the scratch graph."""
        spec: ModelSpec = self.blueprint.result
        return spec

    def trace_again(self) -> "TracedModel":
        """Call model_fn again, in a new scratch graph, and return the model.

        Raises:
            ModelFnValueError: model_fn made different variables.
        """
        new_model = trace_model(
            self.call_model, self.mode, self.specs, self.seed, self.summaries_dir, self.num_replicas
        )
        names = [info.name for info in new_model.blueprint.variables]
        previous_names = [info.name for info in self.blueprint.variables]
        if names != previous_names:
            raise ModelFnValueError(
                f"model_fn must make the same variables in the same order at every call (got {names}, expected {previous_names}). "
                "Make them all in each call."
            )
        # The writers of the new trace write to the open event file.
        blueprint = dataclasses.replace(new_model.blueprint, writer_key=self.blueprint.writer_key)
        return dataclasses.replace(new_model, blueprint=blueprint)


def trace_model(
    call_model: ModelCall,
    mode: str,
    specs: tuple[Specs, Specs],
    seed: int | None,
    summaries_dir: str | None = None,
    num_replicas: int | None = None,
) -> TracedModel:
    """Call model_fn in a scratch graph, and return the traced model.

    Args:
        call_model: function of (features, labels) that calls model_fn.
        mode: a value of ModeKeys.
        specs: specs of (features, labels) of one replica.
        seed: seed of the graph, or None.
        summaries_dir: folder for the summaries of tf.summary; None if it writes nothing.
        num_replicas: number of replicas on devices, one of which is traced; None for plain TensorFlow.

    Raises:
        ModelFnError: model_fn did not return a spec of this mode.
    """
    # Fields of the TracedModel that are made inside the scratch graph, set by `build`.
    graph_fields: dict[str, Any] = {}

    def build(features: Tensors, labels: Tensors) -> ModelSpec:
        """Build the model in the scratch graph, and set `graph_fields`."""
        if num_replicas is not None:
            _mark_for_xla(tf.compat.v1.get_default_graph())
        with tf.name_scope(OWN_SCOPE):
            step = tf.compat.v1.placeholder(tf.int64, [], name="step")
            replica = tf.compat.v1.placeholder(tf.int32, [], name="replica")
        graph_fields.update(step=step, replica=replica)
        with replica_context(num_replicas or 1, replica):
            if summaries_dir is None:
                return _build_spec(call_model, mode, seed, features, labels)
            # tf.summary does nothing without a writer. In the scratch graph, this one never writes.
            with tf.name_scope(OWN_SCOPE):
                writer = tf.summary.create_file_writer(summaries_dir)
                records_summaries = tf.compat.v1.placeholder(tf.bool, [], name="record")
                # `step` counts the steps done; summaries belong to the next one.
                next_step = step + 1
            with writer.as_default(step=next_step), tf.summary.record_if(records_summaries):
                spec = _build_spec(call_model, mode, seed, features, labels)
        graph_fields.update(
            records_summaries=records_summaries,
            summary_writes=tuple(find_summary_writes(tf.compat.v1.get_default_graph())),
        )
        return spec

    blueprint = trace_function(build, specs, seed)
    return TracedModel(call_model, mode, specs, seed, summaries_dir, num_replicas, blueprint, **graph_fields)


def _build_spec(call_model: ModelCall, mode: str, seed: int | None, features: Tensors, labels: Tensors) -> ModelSpec:
    """Call model_fn in the graph that is being built, and return its spec.

    Args:
        call_model: function of (features, labels) that calls model_fn.
        mode: a value of ModeKeys, which the spec must have.
        seed: seed of Keras' draws, or None.
        features: placeholders of the features.
        labels: placeholders of the labels, or None.

    Raises:
        ModelFnError: model_fn did not return a spec of this mode.
    """
    tf.compat.v1.train.get_or_create_global_step()
    with fresh_keras_state(seed):
        spec = call_model(features, labels)
    check_spec(spec)
    if spec.mode != mode:
        raise ModelFnValueError(
            f"model_fn must return a spec of its mode (got {spec.mode!r}, expected {mode!r}). Pass mode."
        )
    return spec


def _mark_for_xla(graph: tf.Graph) -> None:
    """Mark a graph as one for XLA, for which TensorFlow builds some operations differently.

    Gradients of conditions and loops compile only with the mark. TensorFlow looks for the mark at the graph and at its outer
    graphs. It is set at an outer graph: at the graph itself, it would make variables as if they were inside a loop.
    """
    outer_graph = tf.Graph()
    with outer_graph.as_default():
        control_flow_ops.XLAControlFlowContext().Enter()
    graph.outer_graph = outer_graph
