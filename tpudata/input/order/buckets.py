"""Length buckets: records of about one length together, so that little of a batch is padding.

Every record belongs to the bucket with the smallest sufficient length, or to the longest if none suffices. Each bucket is fed like
a separate dataset, in its own order (see `evaluation` and `training`) and batch size. The bucket of a step depends on the record
counts and the seed alone, so that all hosts take the same bucket, and a run that starts at a step knows the position in each
bucket.

In training, bucket b with N records and batches of B has given floor(e N / B) batches when epoch e begins. The batches of all
buckets in an epoch are permuted. In evaluation one bucket comes after the other, each with its last batch padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.input.order.chunks import Integers
from tpudata.input.order.draws import STEP_DRAWS, draw


class Bucket(NamedTuple):
    """The records of about one length.

    Attributes:
        length: length to which they are padded.
        ids: their record numbers, ascending.
    """

    length: int
    ids: Integers


def find_buckets(record_lengths: Integers, bucket_lengths: Sequence[int]) -> list[Bucket]:
    """Return the buckets that have records.

    Args:
        record_lengths: length of each record, int64 [records]. Records longer than the longest bucket are in it, too.
        bucket_lengths: the buckets' lengths, ascending.
    """
    bucket_indices = np.minimum(np.searchsorted(np.asarray(bucket_lengths), record_lengths), len(bucket_lengths) - 1)
    buckets = [Bucket(length, np.flatnonzero(bucket_indices == index)) for index, length in enumerate(bucket_lengths)]
    return [bucket for bucket in buckets if len(bucket.ids)]


def derive_bucket_seed(seed: int, bucket_index: int) -> int:
    """Return the seed of a bucket's order, from 0 to 2**32 - 1, from the run's seed and the bucket's index."""
    return int(np.random.SeedSequence((seed, bucket_index)).generate_state(1)[0])


class BucketSteps:
    """Bucket of each step. An evaluation is one epoch.

    Args:
        record_counts: number of records of each bucket, N.
        batch_sizes: size of the global batches of each bucket, B.
        seed: seed of training, 0 or more; None for evaluation.
        num_epochs: number of epochs of training; None for no end.
    """

    def __init__(
        self, record_counts: Sequence[int], batch_sizes: Sequence[int], seed: int | None, num_epochs: int | None = None
    ) -> None:
        # (record count, batch size) of each bucket.
        self._sizes = list(zip(record_counts, batch_sizes, strict=True))
        self._seed = seed
        self._epochs = 1 if seed is None else num_epochs

    @property
    def steps(self) -> int | None:
        """Number of global batches; None if they never end."""
        return None if self._epochs is None else self._find_first_step(self._epochs)

    def list_buckets(self, first_step: int, stop_step: int) -> tf.data.Dataset:
        """Return a dataset of the bucket indices of the steps [first_step, stop_step), int64 each."""
        first_epoch = 0 if self._seed is None else self._find_epoch(first_step)
        steps_to_skip = first_step - self._find_first_step(first_epoch)

        def draw_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            """Return the bucket indices of an epoch; of the first epoch only those from `first_step` on."""
            begin = tf.where(tf.equal(epoch, first_epoch), steps_to_skip, 0)
            return tf.data.Dataset.from_tensor_slices(self._draw_bucket_order(epoch)[begin:])

        stop_epoch = tf.int64.max if self._epochs is None else self._epochs
        epochs = tf.data.Dataset.range(first_epoch, stop_epoch)
        return epochs.flat_map(without_autograph(draw_epoch)).take(stop_step - first_step)

    def count_batches_before(self, step: int) -> list[int]:
        """Return the number of batches of each bucket before a step."""
        if self._epochs is not None and step >= self._find_first_step(self._epochs):
            return self._count_batches(self._epochs)
        epoch = 0 if self._seed is None else self._find_epoch(step)
        # The dataset may belong to a graph of TensorFlow 1, in which the order would have no value yet.
        with tf.init_scope():
            order = np.asarray(tf.get_static_value(self._draw_bucket_order(tf.constant(epoch, tf.int64))))
        counts = np.bincount(order[: step - self._find_first_step(epoch)], minlength=len(self._sizes))
        return [before + int(count) for before, count in zip(self._count_batches(epoch), counts, strict=True)]

    def _count_batches(self, epoch: int) -> list[int]:
        """Return the number of batches of each bucket before an epoch."""
        # An evaluation rounds up, since it pads its last batches; in training, records that fill no batch join the next epoch.
        if self._seed is None:
            return [epoch * -(-count // batch_size) for count, batch_size in self._sizes]
        return [epoch * count // batch_size for count, batch_size in self._sizes]

    def _find_first_step(self, epoch: int) -> int:
        """Return the first step of an epoch."""
        return sum(self._count_batches(epoch))

    def _find_epoch(self, step: int) -> int:
        """Return the epoch that a step belongs to: the last one whose first step is not after it."""
        # Bisection: epoch `low` begins at the step or before it, and epoch `high` after it.
        low, high = 0, 1
        while self._find_first_step(high) <= step:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._find_first_step(middle) <= step:
                low = middle
            else:
                high = middle
        return low

    def _draw_bucket_order(self, epoch: tf.Tensor) -> tf.Tensor:
        """Return the bucket indices of an epoch's steps, int64 [steps]; in training in random order.

        An evaluation pads the last batch of each bucket. In training, the records that do not fill a batch join the next epoch.
        """
        record_counts = tf.constant([count for count, _ in self._sizes], tf.int64)
        batch_sizes = tf.constant([batch_size for _, batch_size in self._sizes], tf.int64)
        buckets = tf.range(len(self._sizes), dtype=tf.int64)
        if self._seed is None:
            return tf.repeat(buckets, (record_counts + batch_sizes - 1) // batch_sizes)
        # The batches before the next epoch, less the batches before this epoch.
        order = tf.repeat(buckets, (epoch + 1) * record_counts // batch_sizes - epoch * record_counts // batch_sizes)
        draws = draw(tf.shape(order), self._seed, epoch, STEP_DRAWS)
        return tf.gather(order, tf.argsort(draws, stable=True))
