"""Check of a program's compatibility with TPUs, on a machine without one."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.findings import Finding
from tpudata.estimator.base_estimator import BaseEstimator
from tpudata.estimator.tpu_check.rehearsal import rehearse


def check_tpu_compatibility(estimator: BaseEstimator, input_fns: Mapping[str, Callable[..., Any]]) -> list[Finding]:
    """List what a TPU would reject or run slowly, without using one.

    For each mode, the step of one of TPUConfig's num_shards cores (8 if it is None) is traced as on a TPU, every operation is
    checked, and the step is compiled by XLA on this machine. No step runs, no data is read and nothing is written; a dataset is
    made, but not iterated.

    Args:
        estimator: a TPUEstimator, or an Estimator.
        input_fns: from a value of ModeKeys to the input_fn of that mode.

    Returns:
        The findings, each with its place, reason and fix; empty if a TPU would accept everything. With eval_on_tpu=False,
        evaluation is not checked.

    Raises:
        TypeError: estimator has the wrong type.
        ValueError: a mode is unknown.
    """
    if not isinstance(estimator, BaseEstimator):
        raise TypeError(f"check_tpu_compatibility: estimator must be a TPUEstimator, got {type(estimator).__name__}.")
    with tf.__internal__.eager_context.eager_mode():
        return list(rehearse(estimator._runtimes.training, estimator._modes_on_tpu(input_fns)).findings)
