"""Rehearsal with XLA: compile a step on this machine, and find the operations that XLA rejects."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from tpudata.devices.graphs.graph_copy import SCOPE
from tpudata.devices.graphs.graph_walk import walk_graph
from tpudata.devices.tpu_compiler.topologies import GIB
from tpudata.error_text import libraries as library_errors
from tpudata.estimator.api.findings import Report
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.steps.replica_step import make_replica_rewrite
from tpudata.estimator.tpu_check.memory import count_bytes
from tpudata.estimator.tpu_check.operations import StepGraph, find_code_line, has_known_shape
from tpudata.estimator.tracing.traced_model import TracedModel

_log = logging.getLogger("tpudata")
_MAX_PROBLEMS = 50  # Each costs another compilation.
# Patterns of XLA's errors, and what to do.
_FIXES = (
    (library_errors.NO_CONSTANT, "compute sizes from Python numbers and static shapes, as in x.shape"),
    (
        library_errors.NO_LIST_SIZE,
        "pass maximum_iterations to tf.while_loop, and a Python number as the size of a tf.TensorArray",
    ),
    (library_errors.OTHER_LOOP_SHAPE, "keep the shape of each of a loop's tensors"),
)
OTHER_OPERATIONS = "use other operations, or do it in input_fn"


@dataclasses.dataclass(frozen=True)
class StepPart:
    """Part of a step that can be compiled.

    Attributes:
        function: function of the replica's index (int32 scalar), the tensors of its batch and the results of cut operations. It
            reads and writes `variables` and returns a list of tensors: for the whole step in training, the loss and the tensors of
            host_call.
        specs: specs of the function's arguments.
        num_batch_tensors: number of tensors of the batch, without strings.
        variables: variables of zeros, by name.
        writes: names of the variables that the function may change.
        cut_operations: operations that were cut out of the step.
        is_whole: whether the part is the whole step, except for string arguments.
    """

    function: Callable[..., list[tf.Tensor]]
    specs: Sequence[tf.TensorSpec]
    num_batch_tensors: int
    variables: dict[str, tf.Variable]
    writes: frozenset[str]
    cut_operations: frozenset[tf.Operation]
    is_whole: bool


class StepParts:
    """Builder of the parts of a step that are compiled, without the operations that are rejected.

    Args:
        traced: the model, traced for replicas, with arguments of static shapes.
        graph: graph of the step.
    """

    def __init__(self, traced: TracedModel, graph: StepGraph) -> None:
        self.traced = traced
        self.graph = graph
        infos = graph.blueprint.variables
        initial_values = {info.name: graph.blueprint.get_initial_value(info) for info in infos}
        # Only their shapes and dtypes matter to a compilation.
        self._variables = {
            name: tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
            for name, tensor in initial_values.items()
        }
        self._placeholders = graph.blueprint.placeholders
        # String arguments, which XLA does not support, are always cut out.
        self._string_operations = frozenset(
            placeholder.op for placeholder in self._placeholders if placeholder.dtype == tf.string
        )

    def cut_out(self, operations: Iterable[tf.Operation]) -> StepPart:
        """Return the step without `operations` and the operations that cannot run without them."""
        cut_operations = self._string_operations.union(operations)
        # Tensors that are passed in place of cut results, and operations that do not run.
        passed_tensors, skipped = _find_boundary(cut_operations)
        missing_names = {tensor.name for operation in skipped for tensor in operation.outputs} - {
            tensor.name for tensor in passed_tensors
        }
        results = [
            tensor for tensor in self.graph.tensors if tensor.dtype != tf.string and tensor.name not in missing_names
        ]
        updates = [operation for operation in self.graph.updates if operation not in skipped]
        is_whole = cut_operations == self._string_operations
        return self._make_part(results, updates, passed_tensors, skipped, cut_operations, is_whole=is_whole)

    def take_first(self, num_operations: int, cut_operations: frozenset[tf.Operation]) -> StepPart:
        """Return the step's first operations as a part, whose results are the outputs that none of these operations uses.

        Outputs that a compiled step cannot return are omitted.

        Args:
            num_operations: number of operations to take, in the order in which model_fn made them.
            cut_operations: operations to omit, together with the operations that cannot run without them.
        """
        passed_tensors, skipped = _find_boundary(cut_operations)
        included = {*self.graph.operations[:num_operations]} - skipped
        results = [
            tensor
            for operation in self.graph.operations[:num_operations]
            if operation in included
            for tensor in operation.outputs
            if _can_pass(tensor) and included.isdisjoint(tensor.consumers())
        ]
        updates = [operation for operation in self.graph.updates if operation in included]
        return self._make_part(results, updates, passed_tensors, skipped, cut_operations, is_whole=False)

    def _make_part(
        self,
        results: Sequence[tf.Tensor],
        updates: Sequence[tf.Operation],
        passed_tensors: Sequence[tf.Tensor],
        skipped: set[tf.Operation],
        cut_operations: frozenset[tf.Operation],
        *,
        is_whole: bool,
    ) -> StepPart:
        """Return a part of the step.

        Args:
            results: tensors that the part returns.
            updates: operations that the part runs for their effect.
            passed_tensors: tensors that are passed to the part, in place of cut operations' results.
            skipped: operations that do not run: `cut_operations` and the operations that cannot run without them.
            cut_operations: operations that were cut out of the step.
            is_whole: whether the part is the whole step, except for string arguments.
        """
        traced = self.traced
        replay = Replay(
            traced.blueprint,
            results,
            updates,
            passed_tensors=[traced.step, traced.replica, *passed_tensors],
            waits_for=lambda operation: operation not in skipped,
            rewrite=make_replica_rewrite(traced),
        )
        number_placeholders = [placeholder for placeholder in self._placeholders if placeholder.dtype != tf.string]

        def run_part(replica: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
            """Run the part; `values` are the tensors of the batch, without strings, and then those for `passed_tensors`."""
            remaining = iter(values)
            # Operations that use the string arguments have been cut out, so any tensor can take the place of a string.
            arguments = [
                tf.constant(0) if placeholder.dtype == tf.string else next(remaining)
                for placeholder in self._placeholders
            ]
            # Random draws depend on the step.
            step = tf.cast(self._variables["global_step"].read_value(), tf.int64)
            # What remains after the arguments are values for `passed_tensors`.
            part_results: list[tf.Tensor] = replay(
                (arguments,), make_handle_getter(self._variables), [step, replica, *remaining]
            )
            return part_results

        specs = [
            tf.TensorSpec(tensor.shape, tensor.dtype)
            for tensor in [traced.replica, *number_placeholders, *passed_tensors]
        ]
        return StepPart(
            function=run_part,
            specs=specs,
            num_batch_tensors=len(number_placeholders),
            variables=self._variables,
            writes=replay.writes,
            cut_operations=cut_operations,
            is_whole=is_whole,
        )


def can_compile_here(graph: StepGraph, report: Report) -> bool:
    """Return whether this machine has memory to compile a step, whose variables are made here; report a finding if not."""
    blueprint = graph.blueprint
    variables_gib = sum(count_bytes(blueprint.get_initial_value(info)) for info in blueprint.variables) / GIB
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if variables_gib > memory_gib / 2:  # The compilation also takes memory.
        what = f"it is not compiled: its variables take {variables_gib:.1f} of this machine's {memory_gib:.1f} GiB"
        report("the step", what, "use a machine with twice the memory of the variables", is_rejected=False)
        return False
    return True


def compile_step(
    parts: StepParts, unsupported_operations: set[tf.Operation], report: Report, stage: str
) -> StepPart | None:
    """Compile a step repeatedly; report each operation that XLA rejects, and cut it out for the next compilation.

    Args:
        parts: parts of the step.
        unsupported_operations: operations that XLA is known not to support, which are cut out from the start.
        report: function that adds a finding.
        stage: last stage of the compilation: "optimized_hlo", or "stablehlo" if another compiler continues from there.

    Returns:
        The part that XLA compiles; None if an error names no further operation, or after _MAX_PROBLEMS rejected operations.
    """
    # XLA's errors may name an operation inside of a function: report it, and cut out the operation that calls the function.
    operations = {operation.name: (operation, caller) for operation, caller in parts.graph.iterate_all()}
    rejected_operations = set(unsupported_operations)
    start_time = time.monotonic()
    for _ in range(_MAX_PROBLEMS):
        part = parts.cut_out(rejected_operations)
        error = _find_error(part, stage)
        if error is None:
            _log.info(
                "XLA %s %s in %.1f seconds.",
                "compiled" if stage == "optimized_hlo" else "lowered",
                "the rest of the step" if rejected_operations else "the step",
                time.monotonic() - start_time,
            )
            return part
        named_operations = [operations[name] for name in library_errors.find_nodes(error, SCOPE) if name in operations]
        culprits = [(operation, caller) for operation, caller in named_operations if caller not in rejected_operations]
        what = library_errors.find_xla_reason(error, SCOPE)
        fix = next((fix for pattern, fix in _FIXES if pattern.search(error)), OTHER_OPERATIONS)
        if not culprits:
            report("the step", f"XLA: {what}", fix)
            return None
        culprit, caller = culprits[0]
        rejected_operations.add(caller)
        # A call whose shapes depend on the data has been reported already.
        if all(map(has_known_shape, (*caller.inputs, *caller.outputs))):
            report(find_code_line(caller), f"XLA, on {culprit.type} {culprit.name!r}: {what}", fix)
    return None


def _find_error(part: StepPart, stage: str) -> str | None:
    """Compile a part; return XLA's error message, or None if it compiles."""
    compiled = tf.function(part.function, jit_compile=True, autograph=False)
    try:
        compiled.experimental_get_compiler_ir(*part.specs)(stage=stage)
    except (ValueError, tf.errors.OpError) as error:
        return str(error)
    return None


def _find_boundary(cut_operations: Iterable[tf.Operation]) -> tuple[list[tf.Tensor], set[tf.Operation]]:
    """Return the tensors to pass in place of the results of cut operations, and all operations that then do not run.

    A result that cannot be passed to a compiled step, because of its dtype or a dynamic shape, is not passed: its consumers do not
    run either, and the same holds for their results.
    """
    passed_tensors: dict[str, tf.Tensor] = {}

    def list_skipped_consumers(operation: tf.Operation) -> Iterator[tf.Operation]:
        """Add the results of an operation to `passed_tensors` if they can be passed; yield the operations that use the others."""
        for tensor in operation.outputs:
            if _can_pass(tensor):
                passed_tensors[tensor.name] = tensor
            else:
                yield from tensor.consumers()

    skipped = {*walk_graph(cut_operations, list_skipped_consumers)}
    return list(passed_tensors.values()), skipped


def _can_pass(tensor: tf.Tensor) -> bool:
    """Return whether a tensor can be an argument or a result of a compiled step."""
    return tensor.dtype not in (tf.string, tf.variant, tf.resource) and tensor.shape.is_fully_defined()
