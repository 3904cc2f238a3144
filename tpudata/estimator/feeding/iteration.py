"""One pass over a dataset, which ends without waiting for TensorFlow.

When TensorFlow deletes an iterator, it waits for the thread that tunes the input, which sleeps for 10 ms, then 20, 40 and so on up
to a minute. About every third time the thread misses the wake-up, and the deletion waits for the rest of its sleep. So another
thread deletes the iterator.

Before that wait, the deletion ends what the input runs, including Python functions (`from_generator`, `tf.numpy_function`). If the
interpreter has ended by then, C++ aborts the process. So the interpreter waits at exit until all deletions have begun, and deletes
open iterators first. Each iterator gets its thread at the start, as an ending interpreter cannot start threads.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tpudata.devices.batches.feeder import StackIteration
from tpudata.tensor_types import Tensors

# A deletion's part before its wait takes milliseconds, or more on a busy machine.
_WAIT_SECONDS_AT_EXIT = 2.0


class Iteration:
    """The elements of a dataset, one after the other.

    Attributes:
        spec: `tf.TypeSpec` of the iterator.
        is_endless: whether the data is known to repeat without end.

    Args:
        dataset: a `tf.data.Dataset`.
        is_endless: whether the data is known to repeat without end.
    """

    def __init__(self, dataset: tf.data.Dataset, *, is_endless: bool = False) -> None:
        self.is_endless = is_endless
        iterator = iter(dataset)
        self.spec = tf.type_spec_from_value(iterator)
        tensors = tuple(tf.nest.flatten(iterator, expand_composites=True))
        # This dict has the only references to the iterator, for the thread to clear.
        self._references = {"iterator": iterator, "tensors": tensors}
        self._closed = threading.Event()
        deleted = threading.Event()
        arguments = (self._references, self._closed, deleted)
        thread = threading.Thread(target=_delete_when_closed, args=arguments, name="tpudata-iteration-end", daemon=True)
        thread.start()
        # This runs after the thread has ended, or before the interpreter ends.
        weakref.finalize(thread, _close_and_wait, self._closed, deleted)
        # This closes an iteration that is dropped without close().
        weakref.finalize(self, self._closed.set)

    @property
    def tensors(self) -> tuple[tf.Tensor, ...]:
        """Tensors of the iterator. A tf.function that is passed the iterator itself inspects its type at each call."""
        tensors: tuple[tf.Tensor, ...] = self._references["tensors"]
        return tensors

    def next(self) -> Tensors:
        """Return the next element; None at the end."""
        element = self._references["iterator"].get_next_as_optional()
        return element.get_value() if element.has_value() else None

    def close(self) -> None:
        """Release the iterator."""
        self._closed.set()


# Pass over the data of a run: on one device, or over stacks on several.
StepIteration: TypeAlias = Iteration | StackIteration


def _delete_when_closed(references: dict[str, object], closed: threading.Event, deleted: threading.Event) -> None:
    """Wait until the iteration is closed, then drop the last references to the iterator, which deletes it; run in a thread."""
    closed.wait()
    references.clear()
    deleted.set()


def _close_and_wait(closed: threading.Event, deleted: threading.Event) -> None:
    """Close an iteration and wait until its iterator is deleted, at most two seconds."""
    closed.set()
    deleted.wait(_WAIT_SECONDS_AT_EXIT)


def pack_iterator(spec: tf.TypeSpec, tensors: Sequence[tf.Tensor]) -> tf.data.Iterator:
    """Return the iterator with these tensors, in the tf.function that is being built."""
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
