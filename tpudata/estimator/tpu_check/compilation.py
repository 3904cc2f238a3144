"""Rehearsal by XLA: the part of a step that TensorFlow lowers for XLA, found on this machine."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_copy import SCOPE
from tpudata.devices.graphs.graph_walk import reached
from tpudata.devices.tpu_compiler.topologies import GIB
from tpudata.error_text import libraries as texts
from tpudata.estimator.api.findings import Find
from tpudata.estimator.fetching.replay import Replay, handles_of
from tpudata.estimator.steps.replica_step import replica_graph
from tpudata.estimator.tpu_check.memory import byte_size
from tpudata.estimator.tpu_check.operations import Graph, is_known, place_of
from tpudata.estimator.tracing.traced_model import TracedModel

_log = logging.getLogger("tpudata")
_MOST = 50  # Largest number of problems; each costs another compilation.
_FIXES = (
    (texts.NO_CONSTANT, "compute sizes from Python numbers and static shapes, as in x.shape"),
    (
        texts.NO_LIST_SIZE,
        "pass maximum_iterations to tf.while_loop, and a Python number as the size of a tf.TensorArray",
    ),
    (texts.OTHER_LOOP_SHAPE, "keep the shape of each of a loop's tensors"),
)
OTHER_OPERATIONS = "use other operations, or do it in input_fn"


@dataclasses.dataclass(frozen=True)
class StepPart:
    """Part of a step that can be compiled.

    Attributes:
        function: function of the replica's number (int32 scalar), the tensors of its batch and those of cut operations. It reads
            and writes `variables` and returns a list of tensors; in training the loss, if `is_whole`, and those of host_call.
        specs: specs of its arguments.
        num_batch: number of tensors of the batch.
        variables: variables of zeros, by name.
        writes: names of those that it may change.
        cut: operations that are not in it.
        is_whole: whether it is the whole step.
    """

    function: Callable[..., Any]
    specs: Sequence[Any]
    num_batch: int
    variables: dict[str, Any]
    writes: frozenset[str]
    cut: frozenset[Any]
    is_whole: bool


class StepParts:
    """Parts of a step, without operations that are rejected.

    Args:
        traced: the model, traced for replicas, with arguments of static shapes.
        graph: graph of the step.
    """

    def __init__(self, traced: TracedModel, graph: Graph) -> None:
        self.traced = traced
        self.graph = graph
        infos = graph.blueprint.variables
        tensors = {info.name: graph.blueprint.graph.get_tensor_by_name(info.initial) for info in infos}
        self._variables = {
            name: tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False) for name, tensor in tensors.items()
        }
        self._arguments = [item for item in tf.nest.flatten(graph.blueprint.arguments) if item is not None]
        # XLA does not support strings.
        self._strings = frozenset(item.op for item in self._arguments if item.dtype == tf.string)

    def without(self, cut: Iterable[Any]) -> StepPart:
        """Return the step without some operations and without what cannot run without them."""
        left_out = self._strings.union(cut)
        cuts, gone = _boundary(left_out)
        absent = {tensor.name for item in gone for tensor in item.outputs} - {tensor.name for tensor in cuts}
        wanted = [item for item in self.graph.tensors if item.dtype != tf.string and item.name not in absent]
        updates = [item for item in self.graph.updates if item not in gone]
        return self._part(wanted, updates, cuts, gone, left_out, is_whole=left_out == self._strings)

    def beginning(self, part: StepPart, count: int) -> StepPart:
        """Return the first operations of a part, with all their results that no other of them uses.

        Args:
            part: a part of the step.
            count: number of the step's operations, in the order in which model_fn made them.
        """
        cuts, gone = _boundary(part.cut)
        kept = {*self.graph.operations[:count]} - gone
        wanted = [
            tensor
            for operation in self.graph.operations[:count]
            if operation in kept
            for tensor in operation.outputs
            if _can_pass(tensor) and not any(item in kept for item in tensor.consumers())
        ]
        updates = [item for item in self.graph.updates if item in kept]
        return self._part(wanted, updates, cuts, gone, part.cut, is_whole=False)

    def _part(
        self,
        wanted: Sequence[Any],
        updates: Sequence[Any],
        cuts: Sequence[Any],
        gone: set[Any],
        cut: frozenset[Any],
        *,
        is_whole: bool,
    ) -> StepPart:
        traced = self.traced
        replay = Replay(
            traced.blueprint,
            wanted,
            updates,
            [traced.step, traced.replica, *cuts],
            waits_for=lambda item: item not in gone,
            rewrite=replica_graph(traced),
        )
        numbers = [item for item in self._arguments if item.dtype != tf.string]

        def step(replica: Any, *values: Any) -> list[Any]:
            left = iter(values)
            given = [tf.constant(0) if item.dtype == tf.string else next(left) for item in self._arguments]
            # Draws follow the number of the step.
            number = tf.cast(self._variables["global_step"].read_value(), tf.int64)
            results: list[Any] = replay((given,), handles_of(self._variables), [number, replica, *left])
            return results

        specs = [tf.TensorSpec(item.shape, item.dtype) for item in [traced.replica, *numbers, *cuts]]
        return StepPart(step, specs, len(numbers), self._variables, replay.writes, cut, is_whole)


def fits_this_machine(graph: Graph, find: Find) -> bool:
    """Return whether this machine has room to compile a step, whose variables it makes; add a finding if not."""
    infos = graph.blueprint.variables
    size = sum(byte_size(graph.blueprint.graph.get_tensor_by_name(info.initial)) for info in infos) / GIB
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if size > memory / 2:
        what = f"it is not compiled: its variables take {size:.1f} of this machine's {memory:.1f} GiB"
        find("the step", what, "use a machine with twice the memory of the variables", is_rejected=False)
        return False
    return True


def compile_step(parts: StepParts, lacking: set[Any], find: Find, stage: str) -> StepPart | None:
    """Compile a step repeatedly; report what XLA rejects, and cut it out for the next compilation.

    Args:
        parts: parts of the step.
        lacking: operations that are known to be rejected.
        find: function that adds a finding.
        stage: last stage of the compilation: "optimized_hlo", or "stablehlo" if another compiler continues from there.

    Returns:
        The part that XLA compiles, or None.
    """
    outermost = {item.name: owner for item, owner in parts.graph.all()}
    cut = set(lacking)
    begin = time.monotonic()
    for _ in range(_MOST):
        part = parts.without(cut)
        error = _error(part, stage)
        if error is None:
            _log.info(
                "XLA %s %s in %.1f seconds.",
                "compiled" if stage == "optimized_hlo" else "lowered",
                "the rest of the step" if cut else "the step",
                time.monotonic() - begin,
            )
            return part
        known = [name for name in texts.find_nodes(error, SCOPE) if name in outermost]
        culprit = next((outermost[name] for name in known if outermost[name] not in cut), None)
        what = texts.find_xla_reason(error, SCOPE)
        fix = next((fix for sign, fix in _FIXES if sign.search(error)), OTHER_OPERATIONS)
        if culprit is None:
            find("the step", f"XLA: {what}", fix)
            return None
        cut.add(culprit)
        # Shapes that depend on the data have been reported already.
        if all(map(is_known, (*culprit.inputs, *culprit.outputs))):
            find(place_of(culprit), f"XLA, on {culprit.type} {known[0]!r}: {what}", fix)
    return None


def _error(part: StepPart, stage: str) -> str | None:
    """Compile a part; return XLA's error, or None."""
    compiled = tf.function(part.function, jit_compile=True, autograph=False)
    try:
        compiled.experimental_get_compiler_ir(*part.specs)(stage=stage)
    except (ValueError, tf.errors.OpError) as error:
        return str(error)
    return None


def _boundary(cut: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """Return the tensors to pass instead of the results of cut operations, and all operations that are not run.

    Tensors that cannot be passed to a compiled step, or have no static shape, are not passed, and their consumers are not run
    either.
    """
    cuts: dict[str, Any] = {}

    def not_run(operation: Any) -> Iterator[Any]:
        for tensor in operation.outputs:
            if _can_pass(tensor):
                cuts[tensor.name] = tensor
            else:
                yield from tensor.consumers()

    gone = {*reached(cut, not_run)}
    return list(cuts.values()), gone


def _can_pass(tensor: Any) -> bool:
    """Return whether a tensor can be an argument or a result of a compiled step."""
    return tensor.dtype not in (tf.string, tf.variant, tf.resource) and tensor.shape.is_fully_defined()
