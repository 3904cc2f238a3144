"""Rows of the global batch that this process feeds."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsIndex

import tensorflow as tf

from tpudata.checks import check_argument, is_integer
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of the global batch that one input pipeline feeds.

    A step takes one global batch. Each pipeline feeds its rows [first, stop) of it, in batches of `batch_size` rows.

    Attributes:
        batch_size: rows of one element of the dataset, `params["batch_size"]`.
        total: rows of the global batch.
        first, stop: the rows of the pipeline, [first, stop).
    """

    batch_size: int
    total: int
    first: int
    stop: int

    @classmethod
    def all(cls, batch_size: int) -> Rows:
        """Return all rows of a global batch of `batch_size` rows, which one pipeline feeds as one element."""
        return cls(batch_size, total=batch_size, first=0, stop=batch_size)

    @property
    def count(self) -> int:
        """Rows per step."""
        return self.stop - self.first

    def scale(self, factor: int) -> Rows:
        """Return the same part of a global batch of `factor` times as many rows."""
        return Rows(self.batch_size * factor, self.total * factor, self.first * factor, self.stop * factor)


class _Deployment(NamedTuple):
    """One of the input pipelines that together feed a step.

    Attributes:
        pipeline_index: index of this pipeline.
        num_pipelines: number of pipelines.
        num_batches: number of batches that each pipeline feeds in a step.
    """

    pipeline_index: int
    num_pipelines: int
    num_batches: int


def find_rows(batch_size: int, params: Mapping[str, Any], input_context: tf.distribute.InputContext | None) -> Rows:
    """Return the rows of the global batch that this call of input_fn feeds.

    Args:
        batch_size: rows of one element of the dataset.
        params: `params["context"]`, if present, is a TPUContext of TensorFlow's TPUEstimator, or an object with only `num_hosts`,
            which must be 1. The context's `current_input_fn_deployment()` returns (device, index of this call, number of calls,
            replicas that this call feeds). Each call feeds one batch per step; with PER_HOST_V2 one for each of these replicas.
        input_context: a `tf.distribute.InputContext`, which takes precedence over `params["context"]`: a step takes a batch for
            each of its `num_replicas_in_sync`, shared out among its `num_input_pipelines`. None to use `params`.

    Raises:
        UsageError: the numbers do not fit each other, or there are several hosts and no index of this one.
    """
    if input_context is not None:
        index, num_pipelines = int(input_context.input_pipeline_id), int(input_context.num_input_pipelines)
        # Each pipeline feeds a batch, even if a strategy states fewer replicas.
        replicas = max(int(input_context.num_replicas_in_sync), num_pipelines)
        if num_pipelines < 1 or replicas % num_pipelines:
            raise UsageError(
                f"input_context: {replicas} replicas on {num_pipelines} input pipelines; each must feed the same number."
            )
        num_batches = replicas // num_pipelines
    else:
        index, num_pipelines, num_batches = _find_deployment(params.get("context"))
    if not 0 <= index < num_pipelines:
        raise UsageError(
            f"Input pipeline {index} of {num_pipelines}: out of range (expected 0 to {num_pipelines - 1})."
        )
    count = batch_size * num_batches
    return Rows(batch_size, total=count * num_pipelines, first=count * index, stop=count * (index + 1))


def find_rows_of_host(
    global_batch_size: int, host_index: SupportsIndex | None, host_count: SupportsIndex | None
) -> Rows:
    """Return the rows of one of several hosts that share a global batch.

    Args:
        global_batch_size: rows of the global batch.
        host_index: index of the host, from 0.
        host_count: number of hosts, which divides the batch.

    Raises:
        UsageError: an argument is not an integer, the index is out of range, or the hosts cannot share the batch evenly.
    """
    for name, argument in (("host_index", host_index), ("host_count", host_count)):
        check_argument(name, argument, is_integer(argument), "host_index and host_count, both integers")
    assert host_index is not None
    assert host_count is not None
    index, count = operator.index(host_index), operator.index(host_count)
    if not 0 <= index < count:
        raise UsageError(
            f"host_index: out of range (got {format_value(index)}, expected 0 to {count - 1}, as host_count is {count})."
        )
    if global_batch_size % count:
        raise UsageError(
            f'params["batch_size"]={global_batch_size}: with host_count it is the global batch\'s, and {count} hosts cannot'
            " share it evenly. Choose a multiple."
        )
    rows_per_host = global_batch_size // count
    return Rows(rows_per_host, total=global_batch_size, first=rows_per_host * index, stop=rows_per_host * (index + 1))


def _find_deployment(context: Any) -> _Deployment:
    """Return the deployment of this call of input_fn, from `params["context"]`.

    Without a context, or with one that only has `num_hosts`, this call is the only pipeline.

    Raises:
        UsageError: there are several hosts, and the context has no index of this one.
    """
    if context is None:
        return _Deployment(pipeline_index=0, num_pipelines=1, num_batches=1)
    if hasattr(context, "current_input_fn_deployment"):
        _, index, num_calls, replicas = context.current_input_fn_deployment()
        # Only the inner context of TensorFlow's TPUEstimator, last released with 2.15, has the mode, PER_HOST_V2.
        internal = getattr(context, "_internal_ctx", None)
        feeds_replicas = internal is not None and internal.is_input_per_host_with_iterators()
        num_batches = int(replicas) if feeds_replicas else 1
        return _Deployment(int(index), num_pipelines=int(num_calls), num_batches=num_batches)
    num_hosts = int(getattr(context, "num_hosts", 1))
    if num_hosts > 1:
        raise UsageError(
            f"params['context'] has {num_hosts} hosts and does not say which one this is: it needs current_input_fn_deployment()."
            " Pass a tf.distribute.InputContext."
        )
    return _Deployment(pipeline_index=0, num_pipelines=1, num_batches=1)
