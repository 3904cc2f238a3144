"""Packing of pairs for models with an encoder and a decoder: a row has a part for inputs and a part for targets.

As in SeqIO, segment n of the inputs and segment n of the targets of a row are a pair. Pairs are packed in two dimensions: the
largest first, each into the fullest row with room for both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.text_records.sequences import Documents, TokenRows, fill_rows
from beam_jobs.text_records.weights import split_weights

Sizes = npt.NDArray[np.int64]


class PairRows(NamedTuple):
    """A batch of rows of pairs.

    Attributes:
        inputs: parts for inputs, with segments and positions.
        targets: parts for targets of the same rows, also with segments and positions.
    """

    inputs: TokenRows
    targets: TokenRows


def pack_pairs(
    windows: Iterable[Documents], inputs_length: int, targets_length: int, pad_id: int
) -> Iterator[PairRows]:
    """Pack pairs into rows, each window by itself.

    Args:
        windows: windows of pairs from `join_sides`, whose inputs have weight 0. Sides longer than their part of a row are cut.
        inputs_length: number of tokens of a row for inputs.
        targets_length: number of tokens of a row for targets.
        pad_id: token at the positions of a row that no document fills.
    """
    for documents in windows:
        inputs, targets = _split_sides(documents)
        input_sizes = np.minimum(inputs.sizes, inputs_length)
        target_sizes = np.minimum(targets.sizes, targets_length)
        rows = place_pairs(input_sizes, target_sizes, inputs_length, targets_length)
        yield PairRows(
            fill_rows(inputs.tokens, inputs.starts, input_sizes, rows, inputs_length, pad_id),
            fill_rows(targets.tokens, targets.starts, target_sizes, rows, targets_length, pad_id),
        )


def place_pairs(input_sizes: Sizes, target_sizes: Sizes, inputs_length: int, targets_length: int) -> Sizes:
    """Return the row of each pair, int64 [pairs].

    Args:
        input_sizes: int64 [pairs], number of tokens of each pair's inputs, at most `inputs_length`.
        target_sizes: int64 [pairs], number of tokens of each pair's targets, at most `targets_length`.
        inputs_length: number of tokens of a row for inputs.
        targets_length: number of tokens of a row for targets.
    """
    # The largest pairs come first, by the larger share that a side takes of its part of a row.
    relative_sizes = np.stack([input_sizes / inputs_length, target_sizes / targets_length], axis=1)
    order = np.argsort(-relative_sizes.max(axis=1), kind="stable")
    # Free tokens of each row so far, for inputs and targets.
    room = np.empty((len(input_sizes), 2), np.int64)
    rows = np.empty(len(input_sizes), np.int64)
    row_count = 0
    for pair in order.tolist():
        input_size, target_size = input_sizes[pair], target_sizes[pair]
        fitting_rows = np.flatnonzero((room[:row_count, 0] >= input_size) & (room[:row_count, 1] >= target_size))
        if len(fitting_rows):
            # The fullest row with room for both sides.
            relative_room = room[fitting_rows, 0] / inputs_length + room[fitting_rows, 1] / targets_length
            row = int(fitting_rows[np.argmin(relative_room)])
        else:
            row, row_count = row_count, row_count + 1
            room[row] = inputs_length, targets_length
        room[row] -= input_size, target_size
        rows[pair] = row
    # Rows are in the order of their first pairs, so packing keeps a shuffled order shuffled.
    _, first_pairs = np.unique(rows, return_index=True)
    rank = np.empty(row_count, np.int64)
    rank[np.argsort(first_pairs)] = np.arange(row_count)
    return rank[rows]


def _split_sides(documents: Documents) -> tuple[Documents, Documents]:
    """Return the inputs and the targets of pairs that `join_sides` has joined, without their weights."""
    ids, weights = split_weights(documents.tokens)
    # `join_sides` gives weight 1 only to targets: packed pairs are never trained on inputs.
    is_target = weights.astype(np.bool_)
    targets_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_target)])
    target_sizes = targets_before[documents.starts + documents.sizes] - targets_before[documents.starts]
    return Documents(ids[~is_target], documents.sizes - target_sizes), Documents(ids[is_target], target_sizes)
