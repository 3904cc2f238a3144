"""The input of each piece of a mixture's batches, as integer arithmetic.

A global batch of B rows has G pieces of B / G rows, counted through all steps. The first input has its share of the first p pieces,
rounded to a whole number; the second input has its share of the remaining ones, and so on. Each count grows
monotonically with p, so the position of each input follows from the step alone, and all hosts agree.

Row r of a batch is row r // G of piece r % G. So every G neighbouring rows have one of each piece, and a host that feeds some rows
reads the same rows of every piece.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.tensor_types import Tensors

# More pieces mix each batch better; fewer, larger pieces cost less.
_MAX_PIECES = 16
# Weights are held as integers of about this sum.
_WEIGHT_SUM = 2**30


@dataclasses.dataclass(frozen=True)
class MixtureOrder:
    """The order of a mixture's pieces.

    Attributes:
        weights: weight of each input, about 2**30 in sum.
        batch_size: rows of the global batch, B.
    """

    weights: tuple[int, ...]
    batch_size: int

    @classmethod
    def make(cls, weights: Sequence[float], batch_size: int) -> MixtureOrder:
        """Return the order for weights above 0, which need not add up to 1."""
        # Shares of the largest weight, since the sum of huge ones would overflow.
        largest = max(weights)
        total = math.fsum(weight / largest for weight in weights)
        # Even a tiny weight is at least 1, so that its input has some pieces.
        return cls(tuple(max(1, round(weight / largest / total * _WEIGHT_SUM)) for weight in weights), batch_size)

    @property
    def num_pieces(self) -> int:
        """Number of pieces of a batch, G: the largest divisor of the batch size that is at most 16."""
        return max(count for count in range(1, min(self.batch_size, _MAX_PIECES) + 1) if self.batch_size % count == 0)

    def count_pieces_before(self, step: int) -> list[int]:
        """Return the number of pieces of each input before a step."""
        return self._compute_shares(step * self.num_pieces)

    def list_inputs(self, step: int) -> tf.data.Dataset:
        """Return an endless dataset of the index of the input of each piece from a step on, int64 each."""

        def choose_inputs(step_index: tf.Tensor) -> tf.data.Dataset:
            """Return the index of the input of each piece of a step, grouped by input."""
            before = tf.stack(self._compute_shares(step_index * self.num_pieces))
            after = tf.stack(self._compute_shares((step_index + 1) * self.num_pieces))
            inputs = tf.range(len(self.weights), dtype=tf.int64)
            return tf.data.Dataset.from_tensor_slices(tf.repeat(inputs, after - before))

        return tf.data.Dataset.range(step, tf.int64.max).flat_map(without_autograph(choose_inputs))

    def _compute_shares(self, num_pieces: Tensors) -> list[Tensors]:
        """Return how many of the first `num_pieces` pieces are of each input: ints if it is an int, otherwise int64 scalars."""
        shares = []
        num_remaining = num_pieces
        for index, weight in enumerate(self.weights):
            weight_sum = sum(self.weights[index:])
            # num_remaining * weight / weight_sum, rounded, without a product beyond int64.
            quotient, remainder = num_remaining // weight_sum, num_remaining % weight_sum
            share = quotient * weight + (remainder * weight + weight_sum // 2) // weight_sum
            shares.append(share)
            num_remaining = num_remaining - share
        return shares
