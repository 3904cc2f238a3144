"""The order of evaluation: one pass in the order of the dataset, the last batch padded with the last record."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpudata.input.order.chunks import Chunks, Integers


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationOrder:
    """N records in ceil(N / B) global batches of B rows: record p is at position p, and positions from N on are padding.

    Attributes:
        chunks: the records in runs.
        batch_size: rows of the global batch, B.
    """

    chunks: Chunks
    batch_size: int

    @property
    def records(self) -> int:
        """Number of records, N."""
        return self.chunks.records

    @property
    def steps(self) -> int:
        """Number of batches."""
        return -(-self.records // self.batch_size)

    def ranges(self, step: int, first: int, last: int) -> tuple[Integers, Integers]:
        """Return which records the rows [first, last) of all batches from a step on have: where each range begins and ends.

        No range crosses the end of a chunk. Padding is omitted.
        """
        if last - first == self.batch_size:
            begins, ends = np.array([step * self.batch_size]), np.array([self.records])
        else:
            begins = np.arange(step, self.steps, dtype=np.int64) * self.batch_size + first
            ends = np.minimum(begins + last - first, self.records)
        begins, ends = begins[begins < ends], ends[begins < ends]
        # Each run once more for each chunk that begins inside it.
        low = np.searchsorted(self.chunks.starts, begins, "right")
        high = np.searchsorted(self.chunks.starts, ends, "left")
        cuts = [self.chunks.starts[a:b] for a, b in zip(low, high, strict=True)]
        firsts = np.sort(np.concatenate([begins, *cuts])).astype(np.int64)
        lasts = np.sort(np.concatenate([ends, *cuts])).astype(np.int64)
        return firsts, lasts

    def positions(self, step: tf.Tensor, first: int, last: int) -> tf.Tensor:
        """Return the position of each of the rows [first, last) of a step's batch, int64."""
        return step * self.batch_size + tf.range(first, last, dtype=tf.int64)
