"""One pass over a dataset, whose end costs no time.

When TensorFlow deletes an iterator, it waits for the thread that tunes the input. That thread sleeps for 10 ms, then 20, 40 and
so on up to a minute, and about every third time it is woken before it can tell that it should end: then the deletion waits for the
rest of its sleep. So another thread deletes the iterator.

Before that wait the deletion ends what the input runs, Python functions among it (`from_generator`, `tf.numpy_function`). Where the
interpreter has ended by then, it ends the threads that come back to it, and C++ aborts the process over that. So the interpreter
ends a moment after the last deletion began, and an iterator that is still open then is deleted first. The thread of each is there
from the beginning, as an interpreter that ends may start no more of them.
"""

import enum
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# What a deletion does before it waits takes milliseconds, on a busy machine more.
_SECONDS_AT_EXIT = 2.0

# Of several threads that begin with distributed datasets at the same moment, some wait for ever for an element (TensorFlow 2.21).
# It may be asked for again by the thread that has it: the collector runs whatever a generator ends with.
_creation = threading.RLock()


ENDS_WITHIN_STEP = (
    "evaluate: the data ends within a step, whose other replicas have no batch left. Give features['weights'] (0 for "
    "padding), as tpudata.make_input_fn does, or whole steps."
)


class End(enum.Enum):
    """Way to find the end of the data.

    Attributes:
        ASKED: the iterator says whether there is an element. On several devices TensorFlow gathers a whole element on one of them
            for that: those of a TPU's hosts would travel through this process.
        MARKED: elements are pairs of data and whether that is real, as `with_marks` makes them.
        NONE: the data has none.
    """

    ASKED = enum.auto()
    MARKED = enum.auto()
    NONE = enum.auto()


class Iteration:
    """The elements of a dataset, one after the other.

    Attributes:
        spec: the type of the iterator.
        end: as given.
        is_endless: whether the data is known to repeat for ever.

    Args:
        dataset: a `tf.data.Dataset`, or a distributed one.
        end: how its end is found.
        strategy: of a distributed dataset.
        can_fill: whether an element counts that is real on some replicas only.
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
        """Tensors of the iterator. A tf.function that is passed the iterator itself inspects its type at each call."""
        tensors: tuple[Any, ...] = self._parts[1]
        return tensors

    def next(self) -> Any:
        """Return the next element; None at the end.

        To run into the end is an operation that fails, and TensorFlow lets that fail, or wait for ever, what runs on several
        replicas in other threads at that moment.

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
        """Let go of the iterator."""
        self._closed.set()


def next_in_loop(iterator: Any, end: End, strategy: Any) -> tuple[Any, Callable[[], Any]]:
    """Return whether there is an element for all replicas of this process, and what gives it; for a tf.function."""
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
    """Return the iterator that `tensors` are of, in the tf.function that is being built."""
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
