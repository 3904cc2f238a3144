"""Rows of the global batch that this process feeds."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from tpudata.checks import check_argument, is_integer
from tpudata.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of the global batch that one input pipeline feeds.

    A step takes one global batch: of every pipeline the rows [first, stop), in batches of `batch_size`.

    Attributes:
        batch_size: rows of one element of the dataset, `params["batch_size"]`.
        total: rows of the global batch.
        first, stop: the rows of the pipeline, [first, stop).
    """

    batch_size: int
    total: int
    first: int
    stop: int

    @property
    def count(self) -> int:
        """Rows per step."""
        return self.stop - self.first


def find_rows(batch_size: int, params: Mapping[str, Any], input_context: Any) -> Rows:
    """Find which rows of a global batch this call feeds.

    Args:
        batch_size: rows of one element of the dataset.
        params: `params["context"]`, if present, is the original estimator's TPUContext: its
            `current_input_fn_deployment()` is (device, index of this call, number of calls, replicas fed); or only has
            `num_hosts`. Each call feeds one batch per step, and with PER_HOST_V2 one for each of these replicas.
        input_context: a `tf.distribute.InputContext`, or None: a step takes a batch for each of `num_replicas_in_sync`, shared out
            among `num_input_pipelines`. It takes precedence over `params["context"]`.

    Raises:
        UsageError: the numbers do not fit each other, or there are several hosts and no index of this one.
    """
    per_step = 1
    if input_context is not None:
        pipelines, number = int(input_context.num_input_pipelines), int(input_context.input_pipeline_id)
        replicas = max(int(input_context.num_replicas_in_sync), pipelines)
        if pipelines < 1 or replicas % pipelines:
            raise UsageError(
                f"input_context: {replicas} replicas on {pipelines} input pipelines; each must feed the same number."
            )
        per_step = replicas // pipelines
    else:
        pipelines, number, per_step = _find_deployment(params.get("context"))
    if not 0 <= number < pipelines:
        raise UsageError(f"Input pipeline {number} of {pipelines}: out of range (expected 0 to {pipelines - 1}).")
    count = batch_size * per_step
    return Rows(batch_size, count * pipelines, count * number, count * (number + 1))


def find_rows_of_host(batch_size: int, index: Any, count: Any) -> Rows:
    """Return the rows of one of several hosts that share a global batch.

    Args:
        batch_size: rows of the global batch.
        index: index of the host.
        count: number of hosts.

    Raises:
        UsageError: no integers, a number that is not below the count, or a batch that they cannot share evenly.
    """
    for name, value in (("host_index", index), ("host_count", count)):
        check_argument(name, value, is_integer(value), "host_index and host_count, both integers")
    index, count = operator.index(index), operator.index(count)
    if not 0 <= index < count:
        raise UsageError(
            f"host_index: out of range (got {index}, expected 0 to {count - 1}, as host_count is {count})."
        )
    if batch_size % count:
        raise UsageError(
            f'params["batch_size"]={batch_size}: with host_count it is the global batch\'s, and {count} hosts cannot share it'
            " evenly. Choose a multiple."
        )
    each = batch_size // count
    return Rows(each, batch_size, each * index, each * (index + 1))


def _find_deployment(context: Any) -> tuple[int, int, int]:
    """Return (calls of input_fn, index of this call, its batches a step) from the original estimator's context."""
    if context is None:
        return 1, 0, 1
    if hasattr(context, "current_input_fn_deployment"):
        _, number, calls, replicas = context.current_input_fn_deployment()
        # Only the original's inner context says it; TensorFlow 2.15 was its last release.
        internal = getattr(context, "_internal_ctx", None)
        by_replica = internal is not None and internal.is_input_per_host_with_iterators()
        return int(calls), int(number), int(replicas) if by_replica else 1
    hosts = int(getattr(context, "num_hosts", 1))
    if hosts > 1:
        raise UsageError(
            f"params['context'] has {hosts} hosts and does not say which one this is: it needs current_input_fn_deployment()."
            " Pass a tf.distribute.InputContext."
        )
    return 1, 0, 1
