"""Batches as numpy arrays, for training loops in JAX and PyTorch."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpudata.checks import check_integer
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.format.read_errors import translate_reader_error
from tpudata.input.input_fn import InputFn
from tpudata.tensor_types import Arrays


def as_numpy(
    input_fn: InputFn | tf.data.Dataset,
    batch_size: int | None = None,
    *,
    process_index: int = 0,
    process_count: int = 1,
    start_step: int = 0,
) -> Iterator[Arrays]:
    """Yield the batches of an input_fn as numpy arrays, in their structure: (features, labels), features, ...

    If several processes train on one global batch, each gets an equal share of its rows, and in evaluation the same number of
    batches. The caller may modify the arrays. bfloat16 is `ml_dtypes.bfloat16`, which JAX takes; strings
    are `bytes` in arrays of objects.

    Closing or dropping the iterator ends the read-ahead.

    Args:
        input_fn: the function that `make_input_fn` returned; or a `tf.data.Dataset`, which is used unchanged.
        batch_size: rows of the global batch; each process gets `batch_size / process_count` of them. None with a dataset.
        process_index: index of this process, such as `jax.process_index()` or `torch.distributed.get_rank()`.
        process_count: number of processes.
        start_step: number of global batches to skip.

    Raises:
        UsageError: an argument is out of range, or does not fit the others.
        CorruptionError: a record is damaged.
        FeatureError: a record does not match the dataset.
        StorageError: a file cannot be read.

    The last three are raised while iterating; with `filter`, buckets or a cache in a folder, when this function is called, since it
    reads all records.
    """
    if isinstance(input_fn, tf.data.Dataset):
        if (batch_size, process_index, process_count, start_step) != (None, 0, 1, 0):
            raise UsageError(
                "as_numpy: the batches of a dataset are used unchanged. Omit the other arguments, or pass an input_fn."
            )
        return _iterate_arrays(input_fn)
    if not callable(input_fn):
        raise UsageError(f"as_numpy: not an input_fn (got {input_fn!r}). Pass the result of make_input_fn.")
    process_count = to_integer("process_count", process_count, 1)
    process_index = to_integer("process_index", process_index, 0)
    batch_size = to_integer("batch_size", batch_size, 1)
    if process_index >= process_count:
        raise UsageError(
            f"process_index: out of range (got {format_value(process_index)}, expected 0 to {process_count - 1}, as process_count"
            f" is {process_count})."
        )
    if batch_size % process_count:
        raise UsageError(
            f"batch_size: processes cannot share the global batch evenly (got {batch_size}, expected a multiple of"
            f" {process_count}). Choose one."
        )
    context = tf.distribute.InputContext(
        num_input_pipelines=process_count, input_pipeline_id=process_index, num_replicas_in_sync=process_count
    )
    # With `filter`, buckets or a cache in a folder, the first call reads all records.
    with translate_errors():
        dataset = input_fn({"batch_size": batch_size // process_count}, input_context=context, start_step=start_step)
    return _iterate_arrays(dataset)


def _iterate_arrays(dataset: tf.data.Dataset) -> Iterator[Arrays]:
    """Yield the batches of a dataset as numpy arrays that the caller may modify."""
    with translate_errors():
        # A tensor's numpy() is a copy; arrays of as_numpy_iterator are read-only, and PyTorch warns about them.
        for batch in dataset:
            yield tf.nest.map_structure(lambda tensor: tensor.numpy(), batch)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of TensorFlow that come from the reader as TpudataErrors; let others pass."""
    try:
        yield
    except Exception as error:
        # `except tf.errors.OpError` would be evaluated for the GeneratorExit of an iterator that lives until Python ends, when the
        # module tf may be gone; `except Exception` skips it.
        # UnicodeDecodeError: TensorFlow's message contains the bytes of a record, which Python cannot decode.
        may_be_from_reader = isinstance(error, (tf.errors.OpError, UnicodeDecodeError))
        translated = translate_reader_error(error, may_be_plain=True) if may_be_from_reader else None
        if translated is None:
            raise
        raise translated from None


def to_integer(name: str, value: Any, minimum: int) -> int:
    """Return an argument as an int; UsageError if it is not an integer, or below `minimum`."""
    check_integer(name, value, minimum)
    return operator.index(value)
