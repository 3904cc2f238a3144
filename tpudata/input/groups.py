"""Groups of rows on their way from numpy to TensorFlow."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.input.feed import Feed
from tpudata.input.graph.maps import PARALLEL, as_written, map_in_thread, only_arranges
from tpudata.input.next_tokens import NextTokens
from tpudata.input.options.hosts import Rows
from tpudata.input.order.order import Order
from tpudata.input.order.seeds import record_seeds

# Feeds that are kept for whoever asks for their next step: that of the running iterator, and one that may be left behind.
_MAX_FEEDS = 2


class Groups:
    """A host's rows in groups, as a `tf.data.Dataset`.

    It is a function from the step to the rows, and not a generator with a state: a feed that stands at the step is taken up, and
    where there is none, a new one is opened there, which costs a seek. So datasets may be iterated again, at the same time or not
    to the end. (A generator dataset would also switch glibc to returning every large tensor to the system, which costs a third of
    the speed.)

    Args:
        order: the records' order.
        rows: the host's rows.
        size: rows of a group; the last one of a batch, or of several small ones that are taken together, may be shorter.
        seed: for what is drawn per record, or None where nothing is.
        columns: by name, the dtype and shape of a record's value.
        open_feed: opens the feed at a step, with what `load` returned.
        load: makes what all feeds share, or None.
        next_tokens: makes more columns of these, or None.
    """

    def __init__(
        self,
        order: Order,
        rows: Rows,
        size: int,
        seed: int | None,
        columns: dict[str, tuple[tf.DType, tuple[int, ...]]],
        open_feed: Callable[[int, Any], Feed],
        load: Callable[[], Any] | None = None,
        next_tokens: NextTokens | None = None,
    ) -> None:
        self._order = order
        self._rows = rows
        self._size = size
        self._seed = seed
        self._columns = columns
        self._open_feed = open_feed
        self._load = load
        self._next_tokens = next_tokens
        self._loaded: Any = None
        self._feeds: dict[int, Feed] = {}
        self._memory = _Memory()
        # The collector may call `_close` wherever an object is made, so also in a thread that has the lock; and in one that another
        # waits for, which must not have it.
        self._lock = threading.RLock()
        self._loading = threading.Lock()

    def dataset(self, start_step: int, then: Callable[[Any, Any], Any] | None = None) -> tf.data.Dataset:
        """The groups of the steps from one on.

        Args:
            start_step: the first step.
            then: what is done with the columns and extras of each group, or None.

        Returns:
            Dataset of (columns, extras), or of what `then` makes of them. Columns: tensors [n, ...] by name. Extras: "weights"
            float32 [n] in evaluation, 0 for padding and for what stands in for damaged records; "seed" int32 [n, 2] where something
            is drawn.
        """
        spec = self._spec()
        leaves = tf.nest.flatten(spec)
        together = -(-self._size // self._rows.count)
        end = np.iinfo(np.int64).max if self._order.steps is None else max(start_step, self._order.steps)
        is_whole = self._rows.count * together <= self._size
        # One function is half the time to begin a pass of two.
        last = then if then is not None and is_whole and only_arranges(then, spec) else None

        def taken(step: tf.Tensor) -> Any:
            tensors = tf.numpy_function(
                lambda step: tf.nest.flatten(self._taken(int(step), together)), [step], [leaf.dtype for leaf in leaves]
            )
            for tensor, leaf in zip(tensors, leaves, strict=True):
                tensor.set_shape(leaf.shape)
            group = tf.nest.pack_sequence_as(spec, tensors)
            return group if last is None else last(*group)

        dataset = map_in_thread(tf.data.Dataset.range(start_step, end, together), taken)
        # TensorFlow keeps the function for as long as the program runs; what it has read goes with the dataset. Where a graph
        # of TensorFlow 1 goes on without it, that is opened again.
        weakref.finalize(dataset, self._close)
        if not is_whole:
            parts = as_written(lambda *parts: tf.data.Dataset.from_tensor_slices(parts).batch(self._size))
            dataset = dataset.flat_map(parts)
        return dataset if then is last else dataset.map(as_written(then), **PARALLEL)

    def _taken(self, step: int, together: int) -> Any:
        """(columns, extras) of some steps."""
        end = step + together if self._order.steps is None else min(step + together, self._order.steps)
        with self._lock:
            feed = self._feeds.pop(step, None)
        if feed is None:
            feed = self._open_feed(step, self._shared())
        count = self._rows.count
        columns = {
            name: self._memory.array((count * (end - step), *shape), dtype)
            for name, (dtype, shape) in self._columns.items()
        }
        # Training has no weights.
        good = None if self._order.steps is None else np.empty(count * (end - step), np.bool_)
        try:
            for number in range(step, end):
                here = slice(count * (number - step), count * (number - step + 1))
                of_step = {name: column[here] for name, column in columns.items()}
                feed.fill(number, of_step, None if good is None else good[here])
        except BaseException:
            feed.close()
            raise
        if end == self._order.steps:
            feed.close()
        else:
            self._keep(end, feed)
        if self._next_tokens is not None:
            columns |= self._next_tokens.make(columns, self._memory.array)
        extras: dict[str, Any] = {}
        if good is not None or self._seed is not None:
            ranges = [self._order.positions(number, self._rows.first, self._rows.last) for number in range(step, end)]
            positions = np.concatenate(ranges)
            if good is not None:
                extras["weights"] = (self._order.is_real(positions) & good).astype(np.float32)
            if self._seed is not None:
                extras["seed"] = record_seeds(self._seed, positions)
        return columns, extras

    def _shared(self) -> Any:
        """What all feeds share, made once."""
        with self._loading:
            if self._loaded is None and self._load is not None:
                self._loaded = self._load()
            return self._loaded

    def _keep(self, step: int, feed: Feed) -> None:
        with self._lock:
            # Two iterators at one step: one of them opens another feed, later.
            left = [self._feeds.pop(step)] if step in self._feeds else []
            self._feeds[step] = feed
            while len(self._feeds) > _MAX_FEEDS:
                left.append(self._feeds.pop(next(iter(self._feeds))))
        for other in left:
            other.close()

    def _close(self) -> None:
        with self._lock:
            left, self._feeds, self._loaded = self._feeds, {}, None
            self._memory.clear()
        for feed in left.values():
            feed.close()

    def _spec(self) -> Any:
        made = {} if self._next_tokens is None else self._next_tokens.columns
        columns = {
            name: tf.TensorSpec((None, *shape), dtype) for name, (dtype, shape) in {**self._columns, **made}.items()
        }
        extras = {}
        if self._order.steps is not None:
            extras["weights"] = tf.TensorSpec((None,), tf.float32)
        if self._seed is not None:
            extras["seed"] = tf.TensorSpec((None, 2), tf.int32)
        return columns, extras


class _Memory:
    """Arrays that TensorFlow takes as they are; their memory is used again once it is done with them.

    Fresh memory comes in pages that the system first clears: a fifth of the time of feeding small records.
    """

    def __init__(self) -> None:
        # By size. Each begins at a multiple of 64 bytes: TensorFlow copies what does not.
        self._free: dict[int, list[memoryview]] = {}

    def array(self, shape: tuple[int, ...], dtype: tf.DType) -> Any:
        """An array with any values."""
        if dtype == tf.string:
            return np.empty(shape, object)
        size = math.prod(shape) * dtype.size
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else _aligned(size)
        # Every view of it holds it, as it is what they all look into; so does TensorFlow while a tensor has its values.
        root: npt.NDArray[Any] = np.ndarray(shape, dtype.as_numpy_dtype, memory)
        weakref.finalize(root, free.append, memory).atexit = False
        return root

    def clear(self) -> None:
        """Lets go of what is not in use."""
        self._free = {}


def _aligned(size: int) -> memoryview:
    """Fresh memory that begins at a multiple of 64 bytes."""
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].data
