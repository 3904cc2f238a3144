"""One pass over a dataset, whose end costs no time.

When TensorFlow deletes an iterator, it waits for the thread that tunes the input. That thread sleeps for 10 ms, then 20, 40 and
so on up to a minute, and about every third time it is woken before it can tell that it should end: then the deletion waits for the
rest of its sleep. So another thread deletes the iterator.
"""

import threading
from typing import Any

import tensorflow as tf


class Iteration:
    """The elements of a dataset, one after the other.

    Attributes:
        spec: the type of the iterator.
        tensors: what it consists of. A tf.function that is given an iterator looks into its type at each call.

    Args:
        dataset: a `tf.data.Dataset`, or a distributed one.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        self.tensors = tuple(tf.nest.flatten(self._iterator, expand_composites=True))
        self.spec = self._iterator._type_spec

    def next(self) -> Any:
        """Return the next element; None at the end."""
        return next(self._iterator, None)

    def close(self) -> None:
        """Let go of the iterator."""
        parts = [self._iterator, self.tensors]
        del self._iterator, self.tensors
        try:
            threading.Thread(target=parts.clear, name="tpudata-iteration-end", daemon=True).start()
        except RuntimeError:  # Python itself is ending, and starts no more threads.
            parts.clear()


def iterator_of(spec: Any, tensors: Any) -> Any:
    """Return the iterator that `tensors` are of, in the tf.function that is being built."""
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
