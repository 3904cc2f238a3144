"""`InputFn` turns a trainer's request (batch size, hosts and step) into a dataset."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import tensorflow as tf

from tpudata.checks import check_argument, is_integer
from tpudata.error_text.values import format_value
from tpudata.errors import TpudataError, UsageError
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.graph.pipelines.pipeline import BATCHES_AHEAD
from tpudata.input.options.hosts import Rows, find_rows, find_rows_of_host
from tpudata.input.text.token_names import TokenNames, rename_batch

_log = logging.getLogger("tpudata")
# TensorFlow numbers the rows of a batch in int32.
_MAX_BATCH = 2**31 - 1
# Records that are fed before a step are counted in int64; buckets of short records have larger batches.
_MAX_POSITION = 2**53


class BatchPipeline(Protocol):
    """Pipeline from records to batches."""

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of some rows of each global batch, from a step on."""


class InputFn:
    """Function that makes the dataset of a batch size; `make_input_fn` returns it.

    Args:
        pipeline: pipeline of the batches.
        training: whether the batches are for training; evaluation pads its last batch.
        is_endless: whether the datasets have no end.
        mixes_rows: whether rows of a batch depend on each other.
        token_names: the project after which token tensors are named; None for our names.
        weighs_records: whether a feature of the records holds their weights.
        has_drawn_seed: whether the order depends on a seed that this process drew, so that other processes have other orders.
        row_axes: axis of the rows of each tensor whose first axis is not the rows, by its path, such as "features['image']".
    """

    def __init__(
        self,
        pipeline: BatchPipeline,
        *,
        training: bool,
        is_endless: bool,
        mixes_rows: bool = False,
        weighs_records: bool = False,
        token_names: TokenNames | None = None,
        has_drawn_seed: bool = False,
        row_axes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._pipeline = pipeline
        self._row_axes = dict(row_axes)
        self._training = training
        self._is_endless = is_endless
        self._mixes_rows = mixes_rows
        self._weighs_records = weighs_records
        self._token_names = token_names
        self._has_drawn_seed = has_drawn_seed
        self._has_warned_of_seed = False

    @property
    def training(self) -> bool:
        """Whether the input_fn feeds training; an evaluation pads its last batch."""
        return self._training

    @property
    def is_endless(self) -> bool:
        """Whether the datasets have no end."""
        return self._is_endless

    @property
    def mixes_rows(self) -> bool:
        """Whether rows of a batch depend on each other, as with mixup."""
        return self._mixes_rows

    @property
    def weighs_records(self) -> bool:
        """Whether a feature of the records holds their weights, which then also apply in training."""
        return self._weighs_records

    @property
    def has_drawn_seed(self) -> bool:
        """Whether the order depends on a seed that this process drew."""
        return self._has_drawn_seed

    def find_row_axis(self, path: str, spec: tf.TensorSpec) -> int:
        """Return the axis of the rows of a tensor of a batch.

        Args:
            path: path of the tensor, such as "features['image']".
            spec: spec of the tensor; a `batch_transform` may have put a different tensor there.
        """
        axis = self._row_axes.get(path, 0)
        # If the tensor lacks this axis, it is not the transposed one.
        return axis if axis < (spec.shape.rank or 0) else 0

    def __call__(
        self,
        params: Mapping[str, Any],
        input_context: tf.distribute.InputContext | None = None,
        start_step: int = 0,
        *,
        host_index: int | None = None,
        host_count: int | None = None,
    ) -> tf.data.Dataset:
        """Return the dataset; `make_input_fn` describes its elements.

        Args:
            params: `params["batch_size"]` is the rows of one element; `params["context"]` may be the
                context of TensorFlow's TPUEstimator.
            input_context: a `tf.distribute.InputContext`; the batch size is then that of a replica.
            start_step: number of global batches that are done.
            host_index: index of this host, such as `jax.process_index()`. The batch size is then the global batch's, and
                each host gets an equal share of it.
            host_count: number of hosts.

        Raises:
            UsageError: batch size, start_step or hosts are missing or invalid; or a batch cannot take weights, or the
                shuffle window does not fit the memory.
            FeatureError: a tensor that one of the user's functions returns has no static shape.
            CorruptionError: a file of the cache is damaged.
            StorageError: a file of the cache cannot be written.
            ServiceError: the workers of `service` did not register in time.

        A record that is damaged or does not match raises TensorFlow's errors, which `make_input_fn` names: when the dataset is
        iterated, or by this call if `filter`, buckets or a cache in a folder read all records.
        """
        rows = self._find_rows(params, input_context, host_index, host_count)
        # Only a TPUContext states the number of hosts. With one host, this process feeds the other rows as well.
        may_have_other_hosts = getattr(params.get("context"), "num_hosts", None) != 1
        is_part = rows.count < rows.total and may_have_other_hosts
        if self._has_drawn_seed and is_part and not self._has_warned_of_seed:
            self._has_warned_of_seed = True
            _log.warning(
                "input_fn: this call is for %d of the %d rows of a global batch, and each process draws another seed for seed=None."
                " If other processes feed the other rows, some records are repeated and others never fed: pass the same seed= in"
                " all processes.",
                rows.count,
                rows.total,
            )
        return self.batches(rows, _read_start_step(start_step, rows.total))

    def call_in_one_process(
        self, params: Mapping[str, Any], input_context: tf.distribute.InputContext, start_step: int
    ) -> tf.data.Dataset:
        """Return the dataset as `__call__` does, for a process that feeds all rows and makes a dataset for each part of them."""
        rows = self._find_rows(params, input_context, None, None)
        return self.batches(rows, _read_start_step(start_step, rows.total))

    def _find_rows(
        self,
        params: Mapping[str, Any],
        input_context: tf.distribute.InputContext | None,
        host_index: int | None,
        host_count: int | None,
    ) -> Rows:
        """Return the rows of the global batch that a call is for; `__call__` describes the arguments and errors."""
        if host_index is None and host_count is None:
            _check_context(input_context)
            return find_rows(_read_batch_size(params), params, input_context)
        if input_context is not None:
            raise UsageError(
                "input_context: it already has the index of this host. Omit host_index and host_count, or the context."
            )
        return find_rows_of_host(_read_batch_size(params), host_index, host_count)

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of some rows of each global batch, from a step on."""
        try:
            batches = self._pipeline.batches(rows, start_step)
            if self._token_names is None:
                return batches
            rename_tokens = functools.partial(rename_batch, names=self._token_names)
            return batches.map(without_autograph(rename_tokens), **PARALLEL).prefetch(BATCHES_AHEAD)
        except TpudataError as error:
            raise _strip_traceback(error) from None


def _read_start_step(start_step: int, global_batch_size: int) -> int:
    """Return the argument `start_step` as an int; UsageError if it is negative, or the records before it are too many to count."""
    expected = "the number of steps that are done, an integer of 0 or more"
    check_argument("start_step", start_step, is_integer(start_step, 0), expected)
    if operator.index(start_step) * global_batch_size > _MAX_POSITION:
        raise UsageError(
            f"start_step={start_step}: with a global batch of {global_batch_size} it is {_MAX_POSITION // global_batch_size} at"
            " most. Pass the number of steps that are done."
        )
    return operator.index(start_step)


def _check_context(input_context: tf.distribute.InputContext | None) -> None:
    """Check that a context, if there is one, has the numbers of an InputContext; UsageError if not."""
    names = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")
    if input_context is not None and not all(is_integer(getattr(input_context, name, None)) for name in names):
        raise UsageError(
            f"input_context={input_context!r}: pass a tf.distribute.InputContext, of which {', '.join(names)} are integers."
        )


def _strip_traceback(error: TpudataError) -> TpudataError:
    """Return an error of the same class without the traceback that AutoGraph puts before its message."""
    message = str(error)
    if not message.startswith("in user code:"):
        return error
    # AutoGraph's text ends with the class and the message of the error.
    return type(error)(message.rpartition(f"{type(error).__name__}: ")[2].strip())


def _read_batch_size(params: Mapping[str, Any]) -> int:
    """Return `params["batch_size"]` as an int; UsageError if there is no valid one."""
    if not isinstance(params, Mapping):
        raise UsageError(f'params: not a dict (got {params!r}). Pass one, such as {{"batch_size": 128}}.')
    size = params.get("batch_size")
    if size is None:
        raise UsageError(
            'params: no "batch_size". Call input_fn({"batch_size": 128}), or give the trainer a batch size.'
        )
    if not is_integer(size, 1, _MAX_BATCH):
        raise UsageError(
            f'params["batch_size"]: out of range (got {format_value(size)}, expected an integer from 1 to 2**31 - 1).'
        )
    return operator.index(size)
