"""A step traced for several replicas, from which only the operations are kept that a session would run.

A tf.function runs every operation with an effect that is traced into it; a session only runs what its fetches need. So the replicas
are traced into a graph without automatic control dependencies, and the needed part of it is copied into the function.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from tpudata.estimator.fetching.replay import Replay, handles_on_replica
from tpudata.estimator.graph.graph_walk import needed_operations
from tpudata.estimator.graph.keras_effects import KerasConditions
from tpudata.estimator.graph.random_graph import draw_by_step, with_seeds_moved
from tpudata.estimator.state.blueprint import Blueprint, VariableInfo

# In a graph with this prefix in its name, layers of tf.layers and tf_keras behave as in a graph of v1.
_GRAPH_NAME = "wrapped_function_tpudata_step"
_STEP = "tpudata_step"


class Traced(NamedTuple):
    """A traced step.

    Attributes:
        results: nested structure of tensors and per-replica values.
        effects: operations that run in addition to those for the results.
        setup: operations that run once, before the first step: the initializers of lookup tables.
        replicas: number of the replica by name of an operation; other operations belong to the first replica or to none.
    """

    results: Any
    effects: Sequence[Any]
    setup: Sequence[Any]
    replicas: Mapping[str, int]


class _StepGraph(KerasConditions, FuncGraph):  # type: ignore[misc]  # TensorFlow is untyped
    """Graph for the trace of a step, which captures variables."""


def build_needed(function: Callable[..., Traced], arguments: tuple[Any, ...], steps_done: Any, kept: list[Any]) -> Any:
    """Trace a step and build the needed operations into the tf.function that is being built.

    Args:
        function: function of `arguments` that traces the step.
        arguments: nested structures of tensors and per-replica values.
        steps_done: scalar, the number of steps done, on which random draws depend.
        kept: list to which the graph is added, which must live as long as the tf.function: TensorFlow deletes the functions of its
            conditions with it.

    Returns:
        The structure of the results.
    """
    given = tf.nest.flatten(arguments, expand_composites=True)
    graph = _StepGraph(_GRAPH_NAME)
    kept.append(graph)
    with graph.as_default():
        step = tf.compat.v1.placeholder(tf.int64, [], name=_STEP)
        with tf.device(None):
            tensors = [tf.compat.v1.placeholder(item.dtype, item.shape, name="tpudata_input") for item in given]
        traced = function(*tf.nest.pack_sequence_as(arguments, tensors, expand_composites=True))
        results = [tf.identity(item) for item in tf.nest.flatten(traced.results, expand_composites=True)]
    captures = [*graph.captures, *_captured_at_calls(graph)]
    late = _run_setup(graph, traced.setup)

    def rewrite(graph_def: Any) -> Any:
        return draw_by_step(with_seeds_moved(graph_def, traced.replicas), step.op.name)

    # The results of conditions are fetched, too, since a condition only runs what its fetched results need.
    kinds = (tf.resource, tf.variant)
    written = [tensor for item in traced.effects for tensor in item.outputs if tensor.dtype not in kinds]
    inside = [step, *tensors, *(internal for _, internal in captures)]
    replay = Replay(
        Blueprint((), tuple(inside), None, graph), (results, written), [*late, *traced.effects], rewrite=rewrite
    )
    here = tf.compat.v1.get_default_graph()
    outside = [tf.cast(steps_done, tf.int64), *given, *(external for external, _ in captures)]
    found, done = replay([here.capture(item) for item in outside], handles_on_replica({}))
    with tf.control_dependencies(done):
        found = [tf.identity(item) for item in found]
    return tf.nest.pack_sequence_as(traced.results, found, expand_composites=True)


def _captured_at_calls(graph: Any) -> list[tuple[Any, Any]]:
    """Return (outer, inner) tensors whose values are captured at each call: the numbers of exchanges between processes.

    The outer ones belong to the called tf.function, as loops and conditions inside it cannot capture at a call.
    """
    outer = tf.compat.v1.get_default_graph()
    while getattr(outer, "is_control_flow_graph", False):
        outer = outer.outer_graph
    found = []
    for closure, inner in zip(graph.deferred_external_captures, graph.deferred_internal_captures, strict=True):
        with outer.as_default():
            given = outer.capture_call_time_value(_only(closure), tf.TensorSpec(inner.shape, inner.dtype))
        found.append((given, inner))
    return found


def _only(closure: Callable[[], Sequence[Any]]) -> Callable[[], Any]:
    return lambda: closure()[0]


def _run_setup(graph: Any, operations: Sequence[Any]) -> list[Any]:
    """Run the operations of a traced step that do not depend on the step; return the others, which each step must run."""
    known = [(external, internal) for external, internal in graph.captures if not tf.is_symbolic_tensor(external)]
    names = {internal.name for _, internal in known}
    late = [item for item in operations if any(one.type == "Placeholder" for one in needed_operations([item], names))]
    first = [item for item in operations if item not in late]
    if first:
        fill = Replay(Blueprint((), tuple(internal for _, internal in known), None, graph), (), first)
        with tf.init_scope():
            given = [external for external, _ in known]
            tf.function(lambda: fill(given, handles_on_replica({})), autograph=False)()
    return late


@contextlib.contextmanager
def first_values(blueprint: Blueprint, variables: Mapping[str, Any], strategy: Any) -> Iterator[None]:
    """Give real variables an initializer and an initial value in the graph that is being traced, as in v1.

    The initializer does nothing, since the variables have values already.

    Args:
        blueprint: blueprint of the scratch graph.
        variables: the real variables by name.
        strategy: strategy whose replicas have the variables.
    """
    components = {name: strategy.experimental_local_results(variable) for name, variable in variables.items()}
    asked = [info for info in blueprint.variables if _is_used(blueprint, info)]
    replay = Replay(blueprint, [blueprint.graph.get_tensor_by_name(info.initial) for info in asked])
    graph = tf.compat.v1.get_default_graph()
    values = replay((), lambda name: graph.capture(components[name][0].handle))
    initializer = tf.no_op("tpudata_initialized")
    changed = [*variables.values(), *(item for items in components.values() for item in items)]
    before = [(item, item._initializer_op) for item in changed]
    for item in changed:
        item._initializer_op = initializer
    of_components = [(item, value) for info, value in zip(asked, values, strict=True) for item in components[info.name]]
    for item, value in of_components:
        item._initial_value = value
    try:
        yield
    finally:
        for item, operation in before:
            item._initializer_op = operation
        for item, _ in of_components:
            item._initial_value = None


def _is_used(blueprint: Blueprint, info: VariableInfo) -> bool:
    """Return whether model_fn uses the initial value of a variable, which does not depend on the batch."""
    tensor = blueprint.graph.get_tensor_by_name(info.initial)
    if all(item.name in (info.initializer, info.made_with) for item in tensor.consumers()):
        return False
    needed = needed_operations([tensor.op])
    return not any(item.op in needed for item in tf.nest.flatten(blueprint.arguments) if item is not None)
