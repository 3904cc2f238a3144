"""Passes over all records: their lengths, and the selection by a user's function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import PARALLEL, iterate_numpy, without_autograph
from tpudata.input.decode.parse import measure_sequences
from tpudata.input.decode.user_parse import parse_rows
from tpudata.input.graph.records import Records
from tpudata.input.options.options import check_arguments, name_parts
from tpudata.input.order.chunks import Integers
from tpudata.tensor_types import Element, Tensors

# Rows of a batch in a pass.
_BATCH_SIZE = 1024


def measure_lengths(records: Records) -> Integers:
    """Return the length of the longest sequence of each record, int64 [records].

    Raises:
        FeatureError: a record is longer than the longest bucket; the message names its file and offset.
        tf.errors.OpError: a record is damaged.
    """
    padded_fields = [field for field in records.fields.inputs if field.is_padded_sequence]
    lengths = _compute_numbers(
        records,
        lambda stored: stored.map(without_autograph(lambda batch: measure_sequences(batch, padded_fields)), **PARALLEL),
    )
    # All padded sequences have the length of the longest bucket, and `cuts` is the same for all.
    max_length = padded_fields[0].shape[0]
    longest = int(lengths.argmax())
    if not padded_fields[0].cuts and lengths[longest] > max_length:
        names = " and ".join(repr(field.feature.name) for field in padded_fields)
        sequence = f"feature {names}" if len(padded_fields) == 1 else f"the longest of the features {names}"
        raise FeatureError(
            f"{records.stored.describe_location(longest)}: {sequence} has {lengths[longest]} values, and the longest bucket has"
            f" room for {max_length}. Pass a longer one, or truncate=True."
        )
    return lengths


def choose_records(
    records: Records, predicate: Callable[..., bool | tf.Tensor], parse: Callable[..., Element] | None
) -> Integers:
    """Return the record numbers of the records for which a user's function returns True, int64 [n], ascending.

    Args:
        records: all records.
        predicate: the user's function of a record's features, or of the result of `parse`.
        parse: the user's function that parses records; None for the dataset's features.

    Raises:
        UsageError: the predicate does not take these arguments, or does not return a bool.
        FeatureError: `parse` returns a tensor without rows or of no static shape.
        tf.errors.OpError: a record is damaged.
    """

    # AutoGraph converts this function and the predicate that it calls, which may branch on tensors, but not the checks.
    def is_chosen(*record: Tensors) -> tf.Tensor:
        without_autograph(check_arguments)("filter", predicate, name_parts(record))
        return without_autograph(_convert_choice)(predicate(*record))

    def mark_chosen(stored: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset of bool [n]: whether each record of some stored batches is chosen."""
        if parse is None:
            parsed = stored.map(without_autograph(records.stored.parse_features), **PARALLEL)
        else:
            parsed = stored.map(lambda batch: parse_rows(parse, batch), **PARALLEL)
        return parsed.unbatch().map(is_chosen, **PARALLEL).batch(_BATCH_SIZE)

    return np.flatnonzero(_compute_numbers(records, mark_chosen))


def _compute_numbers(records: Records, compute: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Integers:
    """Return a number for each record, int64 [records].

    Args:
        records: the records, which are all read.
        compute: function from a dataset of batches of stored records to a dataset of numbers, one for each record, [n] each.
    """
    numbers = np.concatenate(list(iterate_numpy(lambda: compute(records.read_pass(_BATCH_SIZE)))))
    # The last batch is padded.
    without_padding: Integers = numbers[: records.count].astype(np.int64)
    return without_padding


def _convert_choice(choice: bool | tf.Tensor | None) -> tf.Tensor:
    """Return the result of `filter` as a tensor; UsageError if it is not one bool."""
    if choice is None:
        raise UsageError("filter returned None (expected one bool). End it with `return` and a comparison.")
    tensor = tf.convert_to_tensor(choice)
    if tensor.dtype != tf.bool or tensor.shape.rank != 0:
        raise UsageError(
            f"filter returned {tensor.dtype.name} of shape {tensor.shape} (expected one bool). Return a comparison of the"
            " record's values."
        )
    return tensor
