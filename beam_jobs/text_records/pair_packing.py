"""Packing of pairs for models with an encoder and a decoder: a row has two parts, and both sides of a pair are in one row.

As SeqIO packs them: segment n of the inputs and segment n of the targets are a pair. Pairs are packed in two dimensions: the
largest first, each into the fullest row with room for both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.text_records.sequences import Documents, TokenRows, fill_rows
from beam_jobs.text_records.weights import split_weights
from tpudata.tokenizers import Ids

Sizes = npt.NDArray[np.int64]


class PairRows(NamedTuple):
    """A batch of rows of pairs.

    Attributes:
        inputs: the inputs, with segments and positions.
        targets: the targets, likewise, of as many rows.
    """

    inputs: TokenRows
    targets: TokenRows


def pack_pairs(
    windows: Iterable[Documents], inputs_length: int, targets_length: int, pad_id: int
) -> Iterator[PairRows]:
    """Pack pairs into rows, those of each window together.

    Args:
        windows: windows of pairs of `join_sides`, whose inputs have weight 0. Longer sides are cut.
        inputs_length: number of tokens of a row for inputs.
        targets_length: the same for targets.
        pad_id: padding of rows.
    """
    for documents in windows:
        sides = _split_sides(documents)
        lengths = (inputs_length, targets_length)
        pieces = [np.minimum(side.sizes, length) for side, length in zip(sides, lengths, strict=True)]
        rows = place_pairs(pieces[0], pieces[1], inputs_length, targets_length)
        inputs, targets = (
            fill_rows(side.tokens, np.cumsum(side.sizes) - side.sizes, side_pieces, rows, length, pad_id)
            for side, side_pieces, length in zip(sides, pieces, lengths, strict=True)
        )
        yield PairRows(inputs, targets)


def place_pairs(inputs: Sizes, targets: Sizes, inputs_length: int, targets_length: int) -> Sizes:
    """Return the row of each pair, int64 [pairs].

    Args:
        inputs: int64 [pairs], tokens of each, at most `inputs_length`.
        targets: the same for the targets.
        inputs_length: tokens of a row for inputs.
        targets_length: the same for targets.
    """
    relative_sizes = np.stack([inputs / inputs_length, targets / targets_length], 1)
    order = np.argsort(-relative_sizes.max(1), kind="stable")
    room = np.empty((len(inputs), 2), np.int64)
    rows = np.empty(len(inputs), np.int64)
    count = 0
    for pair in order.tolist():
        size = (inputs[pair], targets[pair])
        fits = np.flatnonzero((room[:count, 0] >= size[0]) & (room[:count, 1] >= size[1]))
        if len(fits):
            room_of_fits = room[fits]
            row = int(fits[np.argmin(room_of_fits[:, 0] / inputs_length + room_of_fits[:, 1] / targets_length)])
        else:
            row, count = count, count + 1
            room[row] = inputs_length, targets_length
        room[row] -= size
        rows[pair] = row
    # Rows are in the order of their first pairs, so packing keeps a shuffled order shuffled.
    _, first_pairs = np.unique(rows, return_index=True)
    rank = np.empty(count, np.int64)
    rank[np.argsort(first_pairs)] = np.arange(count)
    return rank[rows]


def _split_sides(documents: Documents) -> tuple[Documents, Documents]:
    """Return the inputs and the targets of pairs."""
    ids, weights = split_weights(documents.tokens)
    is_target = weights.astype(np.bool_)
    counted: Ids = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_target)])
    ends = np.cumsum(documents.sizes)
    targets = counted[ends] - counted[ends - documents.sizes]
    return Documents(ids[~is_target], documents.sizes - targets), Documents(ids[is_target], targets)
