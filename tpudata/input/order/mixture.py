"""The input of each piece of a mixture's batches, as integer arithmetic.

A global batch of B rows has G pieces of B / G rows. Pieces are numbered consecutively across steps. For every p, the first input
gets its share of the first p pieces, rounded to an integer; the second input gets its share of the remaining ones, and so on.
Each count grows monotonically with p, so the position of each input follows from the step alone, and all hosts agree.

Row r of a batch is row r // G of piece r % G. So every G neighbouring rows have one of each piece, and a host that feeds some rows
reads the same rows of every piece.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.input.order.training import find_largest_divisor
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
        return find_largest_divisor(self.batch_size, _MAX_PIECES)

    def count_pieces_before(self, step: int) -> list[int]:
        """Return the number of pieces of each input before a step."""
        return self._count_first_pieces(step * self.num_pieces)

    def list_inputs(self, step: int) -> tf.data.Dataset:
        """Return an endless dataset of the index of the input of each piece from a step on, int64 each."""

        def choose_inputs(step_index: tf.Tensor) -> tf.data.Dataset:
            """Return a dataset of the index of the input of each piece of a step, grouped by input."""
            before = tf.stack(self._count_first_pieces(step_index * self.num_pieces))
            after = tf.stack(self._count_first_pieces((step_index + 1) * self.num_pieces))
            inputs = tf.range(len(self.weights), dtype=tf.int64)
            return tf.data.Dataset.from_tensor_slices(tf.repeat(inputs, after - before))

        return tf.data.Dataset.range(step, tf.int64.max).flat_map(without_autograph(choose_inputs))

    def _count_first_pieces(self, num_pieces: Tensors) -> list[Tensors]:
        """Return how many of the first `num_pieces` pieces each input has: ints if `num_pieces` is an int, else int64 scalars."""
        counts = []
        num_remaining = num_pieces
        for index, weight in enumerate(self.weights):
            weight_sum = sum(self.weights[index:])
            # num_remaining * weight / weight_sum, rounded, without a product beyond int64.
            quotient, remainder = num_remaining // weight_sum, num_remaining % weight_sum
            count = quotient * weight + (remainder * weight + weight_sum // 2) // weight_sum
            counts.append(count)
            num_remaining = num_remaining - count
        return counts
