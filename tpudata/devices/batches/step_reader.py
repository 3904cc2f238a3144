"""Reading of whole steps from a dataset, many in one call of TensorFlow: Python between elements takes 0.05 ms for each.

The call puts the elements of each replica into a queue, so that the steps before an unreadable element are not lost.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tpudata.devices.batches.prefetcher import release_frames
from tpudata.tensor_types import Array, Tensors
from tpudata.tensorflow_internals import eager_mode

_HOST = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Steps:
    """Elements of consecutive steps.

    Attributes:
        count: number of steps.
        columns: for each replica an array [capacity, ...] for each tensor of an element, with zeros after the last step.
    """

    count: int
    columns: list[list[Array]]


class StepReader:
    """Reader of the steps of one process's replicas.

    Args:
        dataset: `tf.data.Dataset` of the elements of the replicas in turn, with static shapes.
        num_replicas: number of replicas, whose elements make a step.
        capacity: maximum number of steps to read in one call.
        is_endless: whether the data never ends, so that its end is an error.
    """

    def __init__(self, dataset: tf.data.Dataset, num_replicas: int, capacity: int, *, is_endless: bool) -> None:
        # TensorFlow logs a line to stderr when an iterator ends, so endless zeros follow data that ends, and mark its end.
        self._dataset = dataset if is_endless else mark_elements(dataset)
        self._num_replicas = num_replicas
        self._capacity = capacity
        self._is_endless = is_endless
        self._specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)]
        # Traced once, by the first read: TensorFlow would warn of functions that many short runs trace anew.
        self._read_function = _TracedOnce(self._read_steps)
        self._drain_function = _TracedOnce(self._dequeue_whole_steps)

    def open_pass(self) -> "Pass":
        """Return the queues of one pass over the data."""
        dtypes, shapes = [spec.dtype for spec in self._specs], [spec.shape for spec in self._specs]
        # Single steps are read without queues, see `_read_step`.
        num_queues = 0 if self._capacity == 1 else self._num_replicas
        with tf.device(_HOST):
            return Pass(
                [tf.queue.FIFOQueue(self._capacity, dtypes, shapes) for _ in range(num_queues)],
                tf.queue.FIFOQueue(1, [tf.bool], [[]]),
            )

    def read(self, current_pass: "Pass", max_steps: int | None) -> Iterator[Steps]:
        """Yield Steps of at most `capacity` steps each, until the data ends or `current_pass.end()` is called.

        Args:
            current_pass: queues of this pass, from `open_pass`.
            max_steps: maximum number of steps to read; None for all.

        Raises:
            tf.errors.OutOfRangeError: the data ended although `is_endless` is set.
            Exception: the error of the dataset, raised after the steps before it.
        """
        remaining_steps = max_steps
        with tf.device(_HOST):
            iterator = iter(self._dataset)
            while remaining_steps is None or remaining_steps > 0:
                chunk_steps = self._capacity if remaining_steps is None else min(self._capacity, remaining_steps)
                steps, error = self._read_chunk(iterator, current_pass, chunk_steps)
                if steps.count:
                    yield steps
                if error is not None:
                    raise error
                if steps.count < chunk_steps:
                    return
                remaining_steps = None if remaining_steps is None else remaining_steps - steps.count

    def _read_chunk(
        self, iterator: tf.data.Iterator, current_pass: "Pass", max_steps: int
    ) -> tuple[Steps, BaseException | None]:
        """Return up to `max_steps` steps, and the error that ended them early, if any."""
        handles = [queue.queue_ref for queue in current_pass.queues]
        try:
            if not handles:  # Single steps.
                return self._read_step(iterator), None
            stop = current_pass.stop.queue_ref
            return self._make_steps(*self._read_function(iterator, handles, stop, tf.constant(max_steps))), None
        except Exception as error:
            release_frames(error)
            # The complete steps before the error wait in the queues; without queues, there are none.
            steps = self._make_steps(*self._drain_function(handles)) if handles else Steps(0, [])
            # With its traceback, the error and the frames of this thread would keep each other alive.
            return steps, error.with_traceback(None)

    def _make_steps(self, tensors: list[list[tf.Tensor]], num_steps: tf.Tensor) -> Steps:
        """Return `num_steps` steps as arrays, padded with zeros to `capacity` steps, so that all arrays have one shape.

        Args:
            tensors: for each replica, the tensors [num_steps, ...] of its elements.
            num_steps: number of steps (int32 scalar).
        """
        # Full arrays are not copied: they share TensorFlow's memory, and must not be written to.
        return Steps(
            int(num_steps), [[self._pad_to_capacity(np.asarray(tensor)) for tensor in column] for column in tensors]
        )

    def _pad_to_capacity(self, array: Array) -> Array:
        """Return an array [steps, ...] with zeros up to `capacity` steps; a full array is returned unchanged."""
        if len(array) == self._capacity:
            return array
        padded = np.zeros((self._capacity, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded

    def _read_step(self, iterator: tf.data.Iterator) -> Steps:
        """Return one step, or no step at the end of the data.

        The step is read eagerly: its tensors are not copied, and a function call would take 0.3 ms longer.
        """
        elements = [self._read_element(iterator) for _ in range(self._num_replicas)]
        columns = [[np.asarray(tensor)[np.newaxis] for tensor in tensors] for tensors, _ in elements]
        return Steps(int(all(is_real for _, is_real in elements)), columns)

    def _read_steps(
        self, iterator: tf.data.Iterator, handles: Sequence[tf.Tensor], stop: tf.Tensor, max_steps: tf.Tensor
    ) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
        """Return up to `max_steps` steps, stacked for each replica, and their number.

        Args:
            iterator: iterator over the dataset.
            handles: the queue of each replica, in which its elements wait until all are read.
            stop: queue that `Pass.end` closes to end the reading.
            max_steps: maximum number of steps (int32 scalar).
        """

        def read_step(num_done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            """Read one element for each replica into its queue; return the number of whole steps, and whether this one is whole."""
            # Elements are read one after the other, in the order of the replicas.
            previous_enqueue: list[tf.Operation] = []
            real_flags: list[tf.Tensor | bool] = []  # For each element, whether it is real.
            for handle in handles:
                with tf.control_dependencies(previous_enqueue):
                    tensors, is_real = self._read_element(iterator)
                    previous_enqueue = [tf.raw_ops.QueueEnqueueV2(handle=handle, components=tensors)]
                    real_flags.append(is_real)
            with tf.control_dependencies(previous_enqueue):
                is_real_step = tf.reduce_all(tf.stack(real_flags))
                return num_done + tf.cast(is_real_step, tf.int32), is_real_step

        def continues(num_done: tf.Tensor, is_real_step: tf.Tensor) -> tf.Tensor:
            return is_real_step & (num_done < max_steps) & ~tf.raw_ops.QueueIsClosedV2(handle=stop)

        num_done, _ = tf.while_loop(continues, read_step, [tf.constant(0), tf.constant(True)], parallel_iterations=1)
        return self._dequeue(handles, num_done), num_done

    def _read_element(self, iterator: tf.data.Iterator) -> tuple[list[tf.Tensor], tf.Tensor | bool]:
        """Return the tensors of the next element, and whether it is real; zeros after the end of the data are not real."""
        element = iterator.get_next()
        is_real = True
        # `mark_elements` has paired each element of data that ends with whether it is real.
        if not self._is_endless:
            element, is_real = element
        return [tensor for tensor in tf.nest.flatten(element) if tensor is not None], is_real

    def _dequeue_whole_steps(self, handles: Sequence[tf.Tensor]) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
        """Return the complete steps that an error left in the queues, stacked for each replica, and their number."""
        # An error within a step leaves one more element in the queues of the first replicas.
        num_steps = tf.reduce_min(tf.stack([tf.raw_ops.QueueSizeV2(handle=handle) for handle in handles]))
        return self._dequeue(handles, num_steps), num_steps

    def _dequeue(self, handles: Sequence[tf.Tensor], num_steps: tf.Tensor) -> list[list[tf.Tensor]]:
        """Take the elements of `num_steps` steps from the queue of each replica, and return their tensors, stacked."""
        dtypes = [spec.dtype for spec in self._specs]
        return [tf.raw_ops.QueueDequeueManyV2(handle=handle, n=num_steps, component_types=dtypes) for handle in handles]


class _TracedOnce:
    """Function that is traced only at its first call; the dtypes and shapes of its arguments never change."""

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self._function = tf.function(function, autograph=False)
        self._concrete: Callable[..., Tensors] | None = None

    def __call__(self, *arguments: Tensors) -> Tensors:
        """Call the function's graph, traced with the first call's arguments."""
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function(*arguments)
        return self._concrete(*arguments)


@dataclasses.dataclass(frozen=True)
class Pass:
    """Queues of one pass over the data.

    Attributes:
        queues: for each replica a queue of the elements of the steps that are being read; empty if steps are read one by one.
        stop: a queue that is closed to end the reading; a function of TensorFlow can test this.
    """

    queues: list[tf.queue.FIFOQueue]
    stop: tf.queue.FIFOQueue

    def end(self) -> None:
        """End the reading at its next step; may be called from any thread."""
        with eager_mode():  # The caller may be building a graph.
            self.stop.close()


def mark_elements(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset of (element, True) for each element, followed by (zeros, False) without end."""
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else None,
        dataset.element_spec,
    )
    endings = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    return dataset.map(lambda *element: (repack_element(element), True)).concatenate(endings)


def repack_element(element: tuple[Tensors, ...]) -> Tensors:
    """Return the element of a dataset whose tuple `map` has unpacked into arguments."""
    return element[0] if len(element) == 1 else element
