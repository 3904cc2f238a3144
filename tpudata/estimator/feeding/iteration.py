"""One pass over a dataset, whose end costs no time.

When TensorFlow deletes an iterator, it waits for the thread that tunes the input. That thread sleeps for 10 ms, then 20, 40 and
so on up to a minute, and about every third time it is woken before it can tell that it should end: then the deletion waits for the
rest of its sleep. So another thread deletes the iterator.

Before that wait the deletion ends what the input runs, Python functions among it (`from_generator`, `tf.numpy_function`). Where the
interpreter has ended by then, it ends the threads that come back to it, and C++ aborts the process over that. So the interpreter
ends a moment after the last deletion began, and an iterator that is still open then is deleted first. The thread of each is there
from the beginning, as an interpreter that ends may start no more of them.
"""

import threading
import weakref
from typing import Any

import tensorflow as tf

# What a deletion does before it waits takes milliseconds, on a busy machine more.
_SECONDS_AT_EXIT = 2.0

# Of several threads that begin with distributed datasets at the same moment, some wait for ever for an element (TensorFlow 2.21).
# It may be asked for again by the thread that has it: the collector runs whatever a generator ends with.
_creation = threading.RLock()


class Iteration:
    """The elements of a dataset, one after the other.

    Attributes:
        spec: the type of the iterator.
        has_marks: as given.

    Args:
        dataset: a `tf.data.Dataset`, or a distributed one.
        has_marks: whether its elements are pairs of data and whether that is real, as `with_marks` makes them.
    """

    def __init__(self, dataset: Any, *, has_marks: bool = False) -> None:
        self.has_marks = has_marks
        with _creation:
            iterator = iter(dataset)
        self.spec = iterator._type_spec
        # All that holds the iterator is in this list, for the thread to clear.
        self._parts = [iterator, tuple(tf.nest.flatten(iterator, expand_composites=True))]
        self._closed = threading.Event()
        deleted = threading.Event()
        arguments = (self._parts, self._closed, deleted)
        thread = threading.Thread(target=_delete, args=arguments, name="tpudata-iteration-end", daemon=True)
        thread.start()
        # Called when the thread has ended, or before the interpreter does.
        weakref.finalize(thread, _wait, self._closed, deleted)
        # Whoever forgets to close it has closed it all the same.
        weakref.finalize(self, self._closed.set)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """What the iterator consists of. A tf.function that is given an iterator looks into its type at each call."""
        tensors: tuple[Any, ...] = self._parts[1]
        return tensors

    def next(self) -> Any:
        """Return the next element; None at the end.

        The end is asked for: to run into it is an operation that fails, and TensorFlow lets that fail, or wait for ever, what
        runs on several replicas in other threads at that moment.
        """
        element = self._parts[0].get_next_as_optional()
        return element.get_value() if element.has_value() else None

    def close(self) -> None:
        """Let go of the iterator."""
        self._closed.set()


def _delete(parts: list[Any], closed: threading.Event, deleted: threading.Event) -> None:
    closed.wait()
    parts.clear()
    deleted.set()


def _wait(closed: threading.Event, deleted: threading.Event) -> None:
    closed.set()
    deleted.wait(_SECONDS_AT_EXIT)


def iterator_of(spec: Any, tensors: Any) -> Any:
    """Return the iterator that `tensors` are of, in the tf.function that is being built."""
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
