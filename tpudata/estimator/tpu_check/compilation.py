"""Rehearsal by XLA, which compiles a step on this machine."""

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.findings import Find
from tpudata.estimator.fetching.replay import Replay, handles_of
from tpudata.estimator.graph.graph_walk import reached
from tpudata.estimator.tpu_check.memory import GIB, byte_size
from tpudata.estimator.tpu_check.operations import Graph, is_known, place_of

_log = logging.getLogger("tpudata")
_SCOPE = "model/"
_PLACES = (re.compile(r"\{\{node ([^}]+)\}\}"), re.compile(r"node `([^`]+)`"))
_MOST = 50  # Largest number of problems; each costs another compilation.
_FIXES = (
    ("compile-time constant", "compute sizes from Python numbers and static shapes, as in x.shape"),
    (
        "fixed tensor list size",
        "pass maximum_iterations to tf.while_loop, and a Python number as the size of a tf.TensorArray",
    ),
    ("loop body do not match", "keep the shape of each of a loop's tensors"),
)
_FIX = "use other operations, or do it in input_fn"


def compile_step(graph: Graph, lacking: set[Any], find: Find) -> None:
    """Compile a step repeatedly; report what XLA rejects, and cut it out for the next compilation.

    Args:
        graph: graph of the step, whose arguments have static shapes.
        lacking: operations that are known to be rejected.
        find: function that adds a finding.
    """
    infos = graph.blueprint.variables
    tensors = {info.name: graph.blueprint.graph.get_tensor_by_name(info.initial) for info in infos}
    size = sum(map(byte_size, tensors.values())) / GIB
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if size > memory / 2:
        _log.warning("The step is not compiled: its variables take %.1f of this machine's %.1f GiB.", size, memory)
        return
    variables = {
        name: tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False) for name, tensor in tensors.items()
    }
    outermost = {item.name: owner for item, owner in graph.all()}
    # XLA does not support strings.
    cut = lacking | {item.op for item in _arguments(graph) if item.dtype == tf.string}
    begin = time.monotonic()
    for _ in range(_MOST):
        error = _compile(graph, cut, variables)
        if error is None:
            _log.info(
                "XLA compiled the rest of the step in %.1f seconds."
                if cut
                else "XLA compiled the step in %.1f seconds.",
                time.monotonic() - begin,
            )
            return
        names = [name for place in _PLACES for name in place.findall(error)]
        known = [name.removeprefix(_SCOPE) for name in names if name.removeprefix(_SCOPE) in outermost]
        culprit = next((outermost[name] for name in known if outermost[name] not in cut), None)
        what, fix = _first_sentence(error), next((fix for sign, fix in _FIXES if sign in error), _FIX)
        if culprit is None:
            find("the step", f"XLA: {what}", fix)
            return
        cut.add(culprit)
        # Shapes that depend on the data have been reported already.
        if all(map(is_known, (*culprit.inputs, *culprit.outputs))):
            find(place_of(culprit), f"XLA, on {culprit.type} {known[0]!r}: {what}", fix)


def _compile(graph: Graph, cut: set[Any], variables: dict[str, Any]) -> str | None:
    """Compile the step without the operations of `cut`; return XLA's error, or None."""
    cuts, gone = _boundary(cut)
    absent = {tensor.name for item in gone for tensor in item.outputs} - {tensor.name for tensor in cuts}
    wanted = [item for item in graph.tensors if item.dtype != tf.string and item.name not in absent]
    updates = [item for item in graph.updates if item not in gone]
    replay = Replay(graph.blueprint, wanted, updates, cuts, waits_for=lambda item: item not in gone)
    arguments = _arguments(graph)
    numbers = [item for item in arguments if item.dtype != tf.string]

    def step(*values: Any) -> Any:
        left = iter(values)
        given = [tf.constant(0) if item.dtype == tf.string else next(left) for item in arguments]
        return replay((given,), handles_of(variables), list(left))

    compiled = tf.function(step, jit_compile=True, autograph=False)
    try:
        compiler = compiled.experimental_get_compiler_ir(
            *(tf.TensorSpec(item.shape, item.dtype) for item in [*numbers, *cuts])
        )
        compiler(stage="optimized_hlo")
    except (ValueError, tf.errors.OpError) as error:
        return str(error)
    return None


def _arguments(graph: Graph) -> list[Any]:
    return [item for item in tf.nest.flatten(graph.blueprint.arguments) if item is not None]


def _boundary(cut: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """Return the tensors to pass instead of the results of cut operations, and all operations that are not run.

    Tensors that cannot be passed to a compiled step, or have no static shape, are not passed, and their consumers are not run
    either.
    """
    cuts: dict[str, Any] = {}

    def not_run(operation: Any) -> Iterator[Any]:
        for tensor in operation.outputs:
            if tensor.dtype in (tf.string, tf.variant, tf.resource) or not tensor.shape.is_fully_defined():
                yield from tensor.consumers()
            else:
                cuts[tensor.name] = tensor

    gone = {*reached(cut, not_run)}
    return list(cuts.values()), gone


def _first_sentence(error: str) -> str:
    """Return XLA's message, without the text that TensorFlow adds."""
    text = error.partition("'")[2] if error.startswith("Failed ") else error
    return text.strip().splitlines()[0].replace(f"`{_SCOPE}", "`").rstrip(".")
