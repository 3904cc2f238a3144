"""Passes over all records: their lengths, and the selection by a user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import PARALLEL, numpy_elements, without_autograph
from tpudata.input.decode.parse import sequence_lengths
from tpudata.input.decode.user_parse import parse_rows
from tpudata.input.graph.records import Records
from tpudata.input.options.options import check_arguments
from tpudata.input.order.chunks import Integers

# Records of a batch.
_BATCH = 1024


def record_lengths(records: Records) -> Integers:
    """Return the length of the longest sequence of each record, int64 [records].

    Raises:
        FeatureError: a record is too long; names it.
        tf.errors.OpError: a record is damaged.
    """
    padded = [field for field in records.fields.inputs if field.pads]
    lengths = _compute_numbers(
        records, lambda stored: stored.map(without_autograph(lambda batch: sequence_lengths(batch, padded)), **PARALLEL)
    )
    for field in padded:
        longest = int(lengths.argmax())
        if not field.cuts and lengths[longest] > field.shape[0]:
            raise FeatureError(
                f"{records.stored.describe_location(longest)}: feature {field.feature.name!r} has {lengths[longest]} values, and "
                f"the longest bucket has room for {field.shape[0]}. Pass a longer one, or truncate=True."
            )
    return lengths


def choose_records(records: Records, predicate: Callable[..., Any], parse: Callable[..., Any] | None) -> Integers:
    """Return the indices of the records for which a user's function returns True, int64 [n], ascending.

    Args:
        records: all records.
        predicate: function of a record's features, or of the result of `parse`, that returns a bool.
        parse: parses records; None for the dataset's features.

    Raises:
        UsageError: the predicate has other arguments, or does not return a bool.
        tf.errors.OpError: a record is damaged.
    """

    def select(record: Any) -> Any:
        arguments = record if isinstance(record, tuple) else (record,)
        without_autograph(check_arguments)("filter", predicate, ("features", "labels")[: len(arguments)])
        return without_autograph(_check_choice)(predicate(*arguments))

    def choose_batch(stored: tf.data.Dataset) -> tf.data.Dataset:
        if parse is None:
            parsed = stored.map(without_autograph(records.stored.features), **PARALLEL)
        else:
            parsed = stored.map(lambda batch: parse_rows(parse, batch), **PARALLEL)
        single = parsed.unbatch().map(lambda *record: select(record if len(record) > 1 else record[0]), **PARALLEL)
        return single.batch(_BATCH)

    return np.flatnonzero(_compute_numbers(records, choose_batch))


def _compute_numbers(records: Records, compute: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Integers:
    """Return a number for each record, int64 [records], from a function of batches of stored records."""
    numbers = np.concatenate(list(numpy_elements(lambda: compute(records.one_pass(_BATCH)))))
    per_record: Integers = numbers[: records.count].astype(np.int64)
    return per_record


def _check_choice(choice: Any) -> tf.Tensor:
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
