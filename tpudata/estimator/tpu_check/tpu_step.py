"""Rehearsal with the TPU's compiler: a loop of steps on all devices of a slice, compiled by libtpu."""

import dataclasses

import tensorflow as tf

from tpudata.console.tables import memory_text
from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.tpu_compiler.compiler import CompiledLoop, CompilerError, Fault, compile_for
from tpudata.devices.tpu_compiler.device_loop import DeviceLoop, export_loop
from tpudata.devices.tpu_compiler.topologies import TPUSlice
from tpudata.error_text.libraries import find_memory_sizes
from tpudata.error_text.lines import first_line
from tpudata.estimator.api.findings import Report
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.steps.device_calls import lower_step
from tpudata.estimator.steps.step import list_local_names
from tpudata.estimator.tpu_check.compilation import OTHER_OPERATIONS, StepPart, StepParts
from tpudata.estimator.tpu_check.memory import MEMORY_FIX, describe_largest_tensors
from tpudata.estimator.tpu_check.operations import find_code_line
from tpudata.estimator.tracing.traced_model import TracedModel

# Maximum number of rejected operations to look for; each costs a compilation for every doubling of the step's operations.
_MAX_REJECTED = 3
_REJECTION_FAULTS = (Fault.REJECTED, Fault.CRASH)


@dataclasses.dataclass(frozen=True)
class TPUCompilation:
    """Compilation of steps for a slice.

    Attributes:
        tpu: the slice.
        effort: a key of EFFORTS.
        max_steps: maximum number of steps in a loop.
        time_limit: seconds for one compilation; None for the effort's default.
    """

    tpu: TPUSlice
    effort: str
    max_steps: int
    time_limit: float | None = None

    def compile(self, parts: StepParts, part: StepPart, report: Report) -> tuple[DeviceLoop, CompiledLoop] | None:
        """Compile a part of a step; report operations that the compiler rejects, and missing memory.

        Args:
            parts: parts of the step.
            part: the part that TensorFlow lowers.
            report: function that adds a finding.

        Returns:
            The loop and the compiler's numbers; None if the whole step does not compile.
        """
        for _ in range(_MAX_REJECTED):
            try:
                loop = _export_part(parts.traced, part, self.max_steps)
                compiled = self._compile_loop(loop)
            except ModelFnValueError as error:
                report("the step", str(error))
                return None
            except CompilerError as error:
                if error.fault not in _REJECTION_FAULTS:
                    self._report_failure(error, parts, report)
                    return None
                culprit = self._find_culprit(parts, part)
                compiler = f"the compiler of {self.tpu.name}"
                reason = first_line(error)
                if culprit is None:
                    report("the step", f"{compiler} rejects it: {reason}", OTHER_OPERATIONS)
                    return None
                what = f"{compiler} rejects {culprit.type} {culprit.name!r}: {reason}"
                report(find_code_line(culprit), what, OTHER_OPERATIONS)
                part = parts.cut_out({*part.cut_operations, culprit})
            else:
                return (loop, compiled) if part.is_whole else None
        return None

    def _compile_loop(self, loop: DeviceLoop) -> CompiledLoop:
        return compile_for(self.tpu, loop, self.effort, self.time_limit)

    def _report_failure(self, error: CompilerError, parts: StepParts, report: Report) -> None:
        """Report an error of the compiler that no single operation causes: its time, its start, or memory."""
        if error.fault is Fault.TIME:
            report(
                "the TPU's compiler",
                str(error),
                "use the quick effort, a faster machine, or fewer layers that differ",
                is_rejected=False,
            )
            return
        if error.fault is Fault.START:
            what = f"it does not start, and the step is not compiled for {self.tpu.name}: {first_line(error)}"
            report("the TPU's compiler", what, is_rejected=False)
            return
        sizes = find_memory_sizes(str(error))
        if sizes is None:
            what = first_line(error)
        else:
            needed_size, available_size = map(memory_text, sizes)
            what = f"a loop of steps needs {needed_size}, and a device of {self.tpu.name} has {available_size} for programs"
        report(
            "memory of a device", f"{what}; the largest tensors are {describe_largest_tensors(parts.graph)}", MEMORY_FIX
        )

    def _find_culprit(self, parts: StepParts, part: StepPart) -> tf.Operation | None:
        """Find by bisection the first operation that makes the compiler reject a part; None if it accepts all operations.

        The compiler may accept them all although it rejected the program, which also had the loop of steps and the loop's results.
        """
        low = 0
        high = len(parts.graph.operations)
        if not self._rejects(parts, parts.take_first(high, part.cut_operations)):
            return None
        # The compiler accepts the first `low` operations and rejects the first `high`.
        while high - low > 1:
            middle = (low + high) // 2
            if self._rejects(parts, parts.take_first(middle, part.cut_operations)):
                high = middle
            else:
                low = middle
        return parts.graph.operations[high - 1]

    def _rejects(self, parts: StepParts, part: StepPart) -> bool:
        """Return whether the compiler rejects a part; False if the part cannot be lowered for it."""
        try:
            self._compile_loop(_export_part(parts.traced, part, max_steps=1))
        except ModelFnValueError:
            return False
        except CompilerError as error:
            return error.fault in _REJECTION_FAULTS
        return False


def _export_part(traced: TracedModel, part: StepPart, max_steps: int) -> DeviceLoop:
    """Export the program that runs a part of a step: a loop of up to `max_steps` whole training steps, otherwise one call.

    Raises:
        ModelFnValueError: TensorFlow cannot lower the part.
    """
    program, layout = lower_step(
        traced, part.function, part.specs, part.variables, list_local_names(traced), part.writes
    )
    # Without the step's loss, a part cannot be a loop.
    is_loop = traced.mode == ModeKeys.TRAIN and part.is_whole
    infos = traced.blueprint.variables
    checked = [info.name for info in infos if info.is_trainable and part.variables[info.name].dtype.is_floating]
    num_replicas = traced.num_replicas or 1
    return export_loop(program, layout, num_replicas, part.num_batch_tensors, max_steps if is_loop else None, checked)
