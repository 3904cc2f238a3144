"""Length buckets: records of about one length together, so that little of a batch is padding.

Every record belongs to the bucket of the smallest length that takes it. Each bucket is fed like a dataset of its own, in an order
of its own (see `order` and `training_order`), in batches of its own size. What is left is which bucket a step takes: that depends
on the numbers of records and the seed alone, so that all hosts take the same one, and a run that starts at a step knows how far
each bucket is.

In training, bucket b with N records and batches of B has given floor(e N / B) batches when epoch e begins. Those that fall into an
epoch, of all buckets, are permuted. In evaluation one bucket comes after the other, each with its last batch padded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpudata.input.chunks import Integers
from tpudata.input.order.seeds import raw_draws

# What the draws are for; `training_order` has its own.
_STEPS = 2


class Bucket(NamedTuple):
    """The records of about one length.

    Attributes:
        length: what they are padded to.
        ids: their numbers in the split, ascending.
    """

    length: int
    ids: Integers


def find_buckets(lengths: Integers, is_whole: npt.NDArray[np.bool_], limits: Sequence[int]) -> list[Bucket]:
    """The buckets that have records.

    Args:
        lengths: int64 [records]: how long each record is. Those beyond the last limit are in its bucket.
        is_whole: bool [records]: which are not damaged; the others are in no bucket.
        limits: the buckets' lengths, ascending.
    """
    numbers = np.minimum(np.searchsorted(np.asarray(limits), lengths), len(limits) - 1)
    found = [Bucket(length, np.flatnonzero((numbers == b) & is_whole)) for b, length in enumerate(limits)]
    return [bucket for bucket in found if len(bucket.ids)]


def bucket_seed(seed: int, bucket: int) -> int:
    """The seed of a bucket's own order, from 0 to 2**32 - 1."""
    return int(np.random.SeedSequence((seed, bucket)).generate_state(1)[0])


class BucketSteps:
    """Which bucket each step takes.

    Args:
        records: of each bucket, N.
        batch_sizes: of its global batches, B.
        seed: from 0 on; None for evaluation.
    """

    def __init__(self, records: Sequence[int], batch_sizes: Sequence[int], seed: int | None) -> None:
        self._sizes = list(zip(records, batch_sizes, strict=True))
        self._seed = seed
        self._order = functools.lru_cache(maxsize=2)(self._new_order)

    @property
    def steps(self) -> int | None:
        """Number of batches, or None where they never end."""
        return self._begin(1) if self._seed is None else None

    def bucket(self, step: int) -> int:
        """The bucket of a step."""
        epoch = self._epoch(step)
        return int(self._order(epoch)[step - self._begin(epoch)])

    def done(self, step: int) -> list[int]:
        """How many batches each bucket has given before a step."""
        if self.steps is not None and step >= self.steps:
            return self._batches(1)
        epoch = self._epoch(step)
        here = np.bincount(self._order(epoch)[: step - self._begin(epoch)], minlength=len(self._sizes))
        return [before + int(count) for before, count in zip(self._batches(epoch), here, strict=True)]

    def _batches(self, epoch: int) -> list[int]:
        """How many batches each bucket has given when an epoch begins."""
        if self._seed is None:
            return [epoch * -(-records // size) for records, size in self._sizes]
        return [epoch * records // size for records, size in self._sizes]

    def _begin(self, epoch: int) -> int:
        """The first step of an epoch."""
        return sum(self._batches(epoch))

    def _epoch(self, step: int) -> int:
        """The epoch of a step: the last one that begins no later."""
        if self._seed is None:
            return 0
        low, high = 0, 1
        while self._begin(high) <= step:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._begin(middle) <= step else (low, middle)
        return low

    def _new_order(self, epoch: int) -> Integers:
        """The buckets of an epoch's steps."""
        counts = np.subtract(self._batches(epoch + 1), self._batches(epoch))
        order = np.repeat(np.arange(len(counts)), counts)
        if self._seed is None:
            return order
        return order[np.argsort(raw_draws(len(order), self._seed, epoch, _STEPS), kind="stable")]
