"""A step that is traced for several replicas, of which only what a session would run is kept.

A tf.function runs every operation with an effect that is traced into it; a session ran what was fetched. So the replicas are traced
into a graph without automatic control dependencies, and the part of it that the step needs is copied into the function.
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

# In a graph with such a name, layers of tf.layers and tf_keras behave as in a graph of v1.
_GRAPH_NAME = "wrapped_function_tpudata_step"
_STEP = "tpudata_step"


class Traced(NamedTuple):
    """A traced step.

    Attributes:
        results: nested structure of tensors and per-replica values.
        effects: operations that run next to what the results need.
        setup: operations that run once, before the first step: the initializers of lookup tables.
        replicas: the replica's number by the name of an operation; others belong to no replica or to the first.
    """

    results: Any
    effects: Sequence[Any]
    setup: Sequence[Any]
    replicas: Mapping[str, int]


class _StepGraph(KerasConditions, FuncGraph):  # type: ignore[misc]  # TensorFlow is untyped
    """The graph that a step is traced into; it captures variables."""


def build_needed(function: Callable[..., Traced], arguments: tuple[Any, ...], steps_done: Any, kept: list[Any]) -> Any:
    """Trace a step and build what it needs into the tf.function that is being built.

    Args:
        function: traces the step; takes `arguments`.
        arguments: nested structures of tensors and per-replica values.
        steps_done: scalar, the number of steps done, by which random operations draw.
        kept: gets what must live as long as the tf.function: TensorFlow deletes the functions of a graph's conditions with the
            graph, also from the copy.

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

    # Of a condition in a graph, only what its results need is run: they are asked for, too.
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
    """Return (outer, inner) tensors for what a traced step takes anew at each call: the numbers of exchanges between processes.

    The outer ones belong to the tf.function that is called, as loops and conditions in it take nothing at a call.
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
    """Run those operations of a traced step that need nothing of the step; return the others, which each step has to run."""
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
    """Let real variables have an initializer and a first value in the graph that is being traced, as those of v1 have.

    The initializer does nothing: the variables have their first values already.

    Args:
        blueprint: of the scratch graph.
        variables: the real variables by name.
        strategy: its replicas have them.
    """
    components = {name: strategy.experimental_local_results(variable) for name, variable in variables.items()}
    asked = [info for info in blueprint.variables if _is_asked_for(blueprint, info)]
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


def _is_asked_for(blueprint: Blueprint, info: VariableInfo) -> bool:
    """Return whether model_fn computes with the first value of a variable, which does not depend on the batch."""
    tensor = blueprint.graph.get_tensor_by_name(info.initial)
    if all(item.name in (info.initializer, info.made_with) for item in tensor.consumers()):
        return False
    needed = needed_operations([tensor.op])
    return not any(item.op in needed for item in tf.nest.flatten(blueprint.arguments) if item is not None)
