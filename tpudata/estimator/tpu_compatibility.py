"""Check of a program's compatibility with TPUs, on a machine without one."""

from collections.abc import Mapping

from tpudata.checks import require_one_of, require_type
from tpudata.devices.tpu_compiler.compiler import EFFORTS
from tpudata.devices.tpu_compiler.topologies import find_slice
from tpudata.errors import UsageError
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.base_estimator import BaseEstimator, get_engine
from tpudata.estimator.tpu_check.result import Findings


def check_tpu_compatibility(
    estimator: BaseEstimator,
    input_fns: Mapping[str, InputFunction],
    *,
    tpu: str | None = None,
    tpu_effort: str = "quick",
) -> Findings:
    """List what a TPU would reject or run slowly, without using one.

    For each mode, the step of one of TPUConfig's num_shards cores (8 if it is None) is traced as on a TPU, every operation is
    checked, and the step is compiled with XLA on this machine. No step runs, no data is read and nothing is written; a dataset is
    made, but not iterated.

    With `tpu`, the step is traced for all devices of that slice, and libtpu, the TPU's own compiler, compiles a loop of steps
    for them in a child process, on any Linux machine with the [tpu] extra. The result then has `costs`: for each mode a StepCost
    with the memory, the operations and the minimum time of a step, and the records a second that feeding must deliver. Without the
    extra, a finding with `is_rejected=False` says that it is missing.

    Args:
        estimator: a TPUEstimator, or an Estimator.
        input_fns: mapping from a value of ModeKeys to the input_fn of that mode.
        tpu: name of a slice, such as "v5e-8", "v4-8", "v5p-16" or "v6e-4"; None for no particular one.
        tpu_effort: "quick", or "full" for the program that a TPU would run, which may take many minutes to compile.

    Returns:
        The findings, a list, each with its location, reason and fix; empty if a TPU would accept everything. With
        eval_on_tpu=False, evaluation is not checked.

    Raises:
        TypeError: estimator has the wrong type.
        ValueError: a mode is unknown.
        UsageError: the slice or the effort does not exist, or the slice does not have TPUConfig's num_shards devices.
    """
    is_estimator = isinstance(estimator, BaseEstimator)
    require_type("check_tpu_compatibility: estimator", estimator, is_estimator, "a TPUEstimator or an Estimator")
    tpu_slice = None if tpu is None else find_slice(tpu, "check_tpu_compatibility(tpu=...)")
    require_one_of("check_tpu_compatibility: tpu_effort", tpu_effort, EFFORTS, UsageError)
    return Findings(get_engine(estimator).rehearse(input_fns, tpu_slice, tpu_effort))
