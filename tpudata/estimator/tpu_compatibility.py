"""Check of a program's compatibility with TPUs, on a machine without one."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.findings import Finding
from tpudata.estimator.base_estimator import BaseEstimator
from tpudata.estimator.tpu_check.rehearsal import rehearse


def check_tpu_compatibility(estimator: BaseEstimator, input_fns: Mapping[str, Callable[..., Any]]) -> list[Finding]:
    """List all that a TPU would reject, and what it would be slow at, without one.

    For each mode the step of one of TPUConfig's num_shards cores (8, if it is None) is traced as it is on a TPU, every operation
    looked at, and the step compiled by XLA on this machine. No step is run, no data read and nothing written; a dataset is made,
    but not iterated.

    Args:
        estimator: a TPUEstimator, or an Estimator.
        input_fns: from a value of ModeKeys to what its call is given as input_fn.

    Returns:
        What was found, each with its place, its reason and its fix; empty if a TPU would take it all. With eval_on_tpu=False
        nothing is said of evaluation.

    Raises:
        TypeError: estimator is of another type.
        ValueError: an unknown mode.
    """
    if not isinstance(estimator, BaseEstimator):
        raise TypeError(f"check_tpu_compatibility: estimator must be a TPUEstimator, got {type(estimator).__name__}.")
    with tf.__internal__.eager_context.eager_mode():
        return list(rehearse(estimator._runtimes.training, estimator._modes_on_tpu(input_fns)).findings)
