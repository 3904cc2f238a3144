"""One pass over a dataset, whose end takes no time.

When TensorFlow deletes an iterator, it waits for the thread that tunes the input, which sleeps for 10 ms, then 20, 40 and so on up
to a minute. About every third time the thread misses the wake-up, and the deletion waits for the rest of its sleep. So another
thread deletes the iterator.

Before that wait, the deletion ends what the input runs, including Python functions (`from_generator`, `tf.numpy_function`). If the
interpreter has ended by then, C++ aborts the process. So the interpreter waits at exit until all deletions have begun, and deletes
open iterators first. Each iterator gets its thread at the start, as an ending interpreter cannot start threads.
"""

import enum
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# The part of a deletion before its wait takes milliseconds, or more on a busy machine.
_SECONDS_AT_EXIT = 2.0

# If several threads start iterating over distributed datasets at the same moment, some wait for ever for an element (TensorFlow
# 2.21). The lock is reentrant, as the garbage collector may end a generator in the thread that holds it.
_creation = threading.RLock()


ENDS_WITHIN_STEP = (
    "evaluate: the data ends within a step, in which some replicas get no batch. Provide features['weights'] (0 for "
    "padding), as tpudata.make_input_fn does, or whole steps."
)


class End(enum.Enum):
    """Way to find the end of the data.

    Attributes:
        ASKED: the iterator reports whether there is an element. On several devices, TensorFlow gathers a whole element on one of
            them for that, so that elements of a TPU's hosts would travel through this process.
        MARKED: elements are pairs of data and a flag whether the data is real, from `with_marks`.
        NONE: the data has no end.
    """

    ASKED = enum.auto()
    MARKED = enum.auto()
    NONE = enum.auto()


class Iteration:
    """The elements of a dataset, one after the other.

    Attributes:
        spec: type of the iterator.
        end: way to find the end.
        is_endless: whether the data is known to repeat without end.

    Args:
        dataset: a `tf.data.Dataset`, or a distributed one.
        end: way to find its end.
        strategy: strategy of a distributed dataset.
        can_fill: whether an element may be real on some replicas only.
    """

    def __init__(self, dataset: Any, end: End = End.ASKED, strategy: Any = None, *, can_fill: bool = True) -> None:
        self.end = end
        self.is_endless = False
        self._can_fill = can_fill
        self._strategy = strategy
        # One call fetches the marks of all hosts.
        self._gathered = tf.function(lambda *marks: tf.stack(marks), autograph=False)
        with _creation:
            iterator = iter(dataset)
        self.spec = iterator._type_spec
        # This list has the only references to the iterator, for the thread to clear.
        self._parts = [iterator, tuple(tf.nest.flatten(iterator, expand_composites=True))]
        self._closed = threading.Event()
        deleted = threading.Event()
        arguments = (self._parts, self._closed, deleted)
        thread = threading.Thread(target=_delete, args=arguments, name="tpudata-iteration-end", daemon=True)
        thread.start()
        # Called after the thread has ended, or before the interpreter ends.
        weakref.finalize(thread, _wait, self._closed, deleted)
        # Closes an iteration that is dropped without close().
        weakref.finalize(self, self._closed.set)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Tensors of the iterator. A tf.function that is passed the iterator itself inspects its type at each call."""
        tensors: tuple[Any, ...] = self._parts[1]
        return tensors

    def next(self) -> Any:
        """Return the next element; None at the end.

        It never runs past the end: in TensorFlow, such a failed operation makes operations on several replicas in other threads
        fail or wait for ever.

        Raises:
            tf.errors.InvalidArgumentError: the data of some replicas ends before that of others.
        """
        if self.end is End.ASKED:
            found = self._parts[0].get_next_as_optional()
            return found.get_value() if found.has_value() else None
        element = self._parts[0].get_next()
        if self.end is End.NONE:
            return element
        element, marks = element
        real = self._gathered(*self._strategy.experimental_local_results(marks)).numpy()
        if real.any() and not real.all() and not self._can_fill:
            raise tf.errors.InvalidArgumentError(None, None, ENDS_WITHIN_STEP)
        return element if real.any() else None

    def close(self) -> None:
        """Release the iterator."""
        self._closed.set()


def next_in_loop(iterator: Any, end: End, strategy: Any) -> tuple[Any, Callable[[], Any]]:
    """Return, in a tf.function, whether there is an element for all replicas of this process, and a function that returns it."""
    if end is End.ASKED:
        found = iterator.get_next_as_optional()
        return found.has_value(), found.get_value
    element = iterator.get_next()
    if end is End.NONE:
        return tf.constant(True), lambda: element
    data, marks = element
    return tf.reduce_all(tf.stack(strategy.experimental_local_results(marks))), lambda: data


def _delete(parts: list[Any], closed: threading.Event, deleted: threading.Event) -> None:
    closed.wait()
    parts.clear()
    deleted.set()


def _wait(closed: threading.Event, deleted: threading.Event) -> None:
    closed.set()
    deleted.wait(_SECONDS_AT_EXIT)


def iterator_of(spec: Any, tensors: Any) -> Any:
    """Return the iterator with these tensors, in the tf.function that is being built."""
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
