"""Reading of whole steps from a dataset, in one call of TensorFlow for many: Python between elements takes 0.05 ms for each.

In a call for many, the elements pass through a queue for each replica: if one cannot be read, the steps before it are still there.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.devices.batches.prefetcher import release_frames
from tpudata.tensorflow_internals import eager_mode

_HOST = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Steps:
    """Elements of consecutive steps.

    Attributes:
        count: number of steps.
        columns: for each replica its arrays, one for each tensor of an element, [capacity, ...]; zeros after the last step.
    """

    count: int
    columns: list[list[Any]]


class StepReader:
    """Reader of the steps of one process's replicas.

    Args:
        dataset: `tf.data.Dataset` of the elements of the replicas in turn, with static shapes.
        replicas: number of replicas, whose elements make a step.
        capacity: largest number of steps to read at once.
        endless: whether the end of the data is an error.
    """

    def __init__(self, dataset: Any, replicas: int, capacity: int, *, endless: bool) -> None:
        # At the end, an iterator would make TensorFlow write a line to stderr.
        self._dataset = dataset if endless else with_marks(dataset)
        self._replicas = replicas
        self._capacity = capacity
        self._endless = endless
        self._specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)]
        # Traced once, by the first read: TensorFlow would warn of functions that many short runs trace anew.
        self._read_function = _Traced(self._read_many)
        self._drain_function = _Traced(self._drain)

    def open_pass(self) -> "Pass":
        """Return the queues of one pass over the data."""
        dtypes, shapes = [spec.dtype for spec in self._specs], [spec.shape for spec in self._specs]
        count = 0 if self._capacity == 1 else self._replicas
        with tf.device(_HOST):
            return Pass(
                [tf.queue.FIFOQueue(self._capacity, dtypes, shapes) for _ in range(count)],
                tf.queue.FIFOQueue(1, [tf.bool], [[]]),
            )

    def read(self, opened: "Pass", limit: int | None) -> Iterator[Steps]:
        """Yield the steps of one pass over the data, by `capacity`.

        Args:
            opened: the queues of this pass, from `open_pass`.
            limit: largest number of steps to read.

        Raises:
            tf.errors.OutOfRangeError: the data is endless, and has ended.
            Exception: the error of the dataset, after the steps before it.
        """
        left = limit
        with tf.device(_HOST):
            iterator = iter(self._dataset)
            while left is None or left > 0:
                wanted = self._capacity if left is None else min(self._capacity, left)
                steps, error = self._read_some(iterator, opened, wanted)
                if steps.count:
                    yield steps
                if error is not None:
                    raise error
                if steps.count < wanted:
                    return
                left = None if left is None else left - steps.count

    def _read_some(self, iterator: Any, opened: "Pass", wanted: int) -> tuple[Steps, BaseException | None]:
        """Return the steps up to the first that cannot be read, and its error."""
        handles = [queue.queue_ref for queue in opened.queues]
        try:
            if not handles:
                return self._read_one(iterator), None
            return self._steps(
                *self._read_function(iterator, handles, opened.stop.queue_ref, tf.constant(wanted))
            ), None
        except Exception as error:
            release_frames(error)
            steps = self._steps(*self._drain_function(handles)) if handles else Steps(0, [])
            # With its traceback, the error would be in a circle with the frames of this thread.
            return steps, error.with_traceback(None)

    def _steps(self, tensors: list[list[Any]], count: Any) -> Steps:
        # The arrays share TensorFlow's memory, which nobody writes to.
        return Steps(int(count), [[self._filled(np.asarray(tensor)) for tensor in column] for column in tensors])

    def _filled(self, array: Any) -> Any:
        if len(array) == self._capacity:
            return array
        filled = np.zeros((self._capacity, *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        return filled

    def _read_one(self, iterator: Any) -> Steps:
        """Return one step, whose tensors are not copied. A call of a function would take 0.3 ms longer."""
        elements = [self._next(iterator) for _ in range(self._replicas)]
        columns = [[np.asarray(part)[np.newaxis] for part in parts] for parts, _ in elements]
        return Steps(int(all(real for _, real in elements)), columns)

    def _read_many(self, iterator: Any, handles: Any, stop: Any, wanted: Any) -> Any:
        """Return some steps, stacked, and their number."""

        def read(done: Any, real: Any) -> Any:
            last: list[Any] = []
            marks: list[Any] = []
            for handle in handles:
                with tf.control_dependencies(last):
                    parts, real = self._next(iterator)
                    last = [tf.raw_ops.QueueEnqueueV2(handle=handle, components=parts)]
                    marks.append(real)
            with tf.control_dependencies(last):
                real = _all(marks)
                return done + tf.cast(real, tf.int32), real

        def goes_on(done: Any, real: Any) -> Any:
            return real & (done < wanted) & ~tf.raw_ops.QueueIsClosedV2(handle=stop)

        done, _ = tf.while_loop(goes_on, read, [tf.constant(0), tf.constant(True)], parallel_iterations=1)
        return self._dequeue(handles, done), done

    def _next(self, iterator: Any) -> tuple[list[Any], Any]:
        """Return the tensors of the next element, and whether it is real."""
        element = iterator.get_next()
        element, real = (element, True) if self._endless else element
        return [part for part in tf.nest.flatten(element) if part is not None], real

    def _drain(self, handles: Any) -> Any:
        """Return the whole steps that are in the queues, stacked, and their number."""
        count = tf.reduce_min(tf.stack([tf.raw_ops.QueueSizeV2(handle=handle) for handle in handles]))
        return self._dequeue(handles, count), count

    def _dequeue(self, handles: Any, count: Any) -> Any:
        dtypes = [spec.dtype for spec in self._specs]
        return [tf.raw_ops.QueueDequeueManyV2(handle=handle, n=count, component_types=dtypes) for handle in handles]


class _Traced:
    """Function of arguments whose dtypes and shapes never change, as one graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, autograph=False)
        self._concrete: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function(*arguments)
        return self._concrete(*arguments)


@dataclasses.dataclass(frozen=True)
class Pass:
    """Queues of one pass over the data.

    Attributes:
        queues: for each replica the elements of the steps that are being read.
        stop: a queue that is closed to end the reading.
    """

    queues: list[Any]
    stop: Any

    def end(self) -> None:
        """End the reading at its next step; may be called from any thread."""
        with eager_mode():  # A program may let go of its data within a graph.
            self.stop.close()


def with_marks(dataset: Any) -> Any:
    """Return a dataset of (element, True) for each element, followed by (zeros, False) without end."""
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else None,
        dataset.element_spec,
    )
    endings = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    return dataset.map(lambda *element: (whole(element), True)).concatenate(endings)


def whole(element: tuple[Any, ...]) -> Any:
    """Return the element of a dataset whose tuple `map` has unpacked into arguments."""
    return element[0] if len(element) == 1 else element


def _all(marks: list[Any]) -> Any:
    return tf.reduce_all(tf.stack(marks))
