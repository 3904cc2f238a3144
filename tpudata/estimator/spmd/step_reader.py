"""Reading of whole steps from a dataset, in one call of TensorFlow for many: Python between elements would take 0.2 ms for each.

The elements pass through a queue for each replica. If one cannot be read, the steps before it are still in the queues.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf


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
        self._dataset = dataset
        self._replicas = replicas
        self._capacity = capacity
        self._endless = endless
        self._specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)]
        self._read_function = tf.function(self._read_one if capacity == 1 else self._read_many, autograph=False)
        self._drain_function = tf.function(self._drain, autograph=False)

    def open_queues(self) -> list[Any]:
        """Return the queues of one pass over the data."""
        if self._capacity == 1:
            return []
        with tf.device("/device:CPU:0"):
            return [
                tf.queue.FIFOQueue(
                    self._capacity, [spec.dtype for spec in self._specs], [spec.shape for spec in self._specs]
                )
                for _ in range(self._replicas)
            ]

    def read(self, queues: list[Any], limit: int | None) -> Iterator[Steps]:
        """Yield the steps of one pass over the data, by `capacity`.

        Args:
            queues: the queues of this pass, from `open_queues`.
            limit: largest number of steps to read.

        Raises:
            tf.errors.OutOfRangeError: the data is endless, and has ended.
            Exception: the error of the dataset, after the steps before it.
        """
        handles = [queue.queue_ref for queue in queues]
        done = 0
        with tf.device("/device:CPU:0"):
            iterator = iter(self._dataset)
            while limit is None or done < limit:
                wanted = self._capacity if limit is None else min(self._capacity, limit - done)
                steps, error = self._read_some(iterator, handles, wanted)
                if steps.count:
                    yield steps
                if error is not None:
                    if isinstance(error, tf.errors.OutOfRangeError) and not self._endless:
                        return
                    raise error
                done += steps.count

    def _read_some(self, iterator: Any, handles: list[Any], wanted: int) -> tuple[Steps, BaseException | None]:
        """Return the steps up to the first that cannot be read, and its error."""
        try:
            return self._steps(self._read_function(iterator, handles, tf.constant(wanted)), wanted), None
        except Exception as error:
            tensors = self._drain_function(handles) if handles else []
            return self._steps(tensors, int(tensors[0][0].shape[0]) if tensors else 0), error

    def _steps(self, tensors: list[list[Any]], count: int) -> Steps:
        # The arrays share TensorFlow's memory, which nobody writes to.
        return Steps(count, [[self._filled(np.asarray(tensor)) for tensor in column] for column in tensors])

    def _filled(self, array: Any) -> Any:
        if len(array) == self._capacity:
            return array
        filled = np.zeros((self._capacity, *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        return filled

    def _read_one(self, iterator: Any, handles: Any, wanted: Any) -> Any:
        """Return one step, whose tensors are not copied."""
        del handles, wanted
        return [[tf.expand_dims(part, 0) for part in _parts(iterator)] for _ in range(self._replicas)]

    def _read_many(self, iterator: Any, handles: Any, wanted: Any) -> Any:
        """Return some steps, stacked."""

        def read(done: Any) -> Any:
            last: list[Any] = []
            for handle in handles:
                with tf.control_dependencies(last):
                    last = [tf.raw_ops.QueueEnqueueV2(handle=handle, components=_parts(iterator))]
            with tf.control_dependencies(last):
                return done + 1

        tf.while_loop(lambda done: done < wanted, read, [tf.constant(0)], parallel_iterations=1)
        return self._dequeue(handles, wanted)

    def _drain(self, handles: Any) -> Any:
        """Return the whole steps that are in the queues, stacked."""
        sizes = [tf.raw_ops.QueueSizeV2(handle=handle) for handle in handles]
        return self._dequeue(handles, tf.reduce_min(tf.stack(sizes)))

    def _dequeue(self, handles: Any, count: Any) -> Any:
        dtypes = [spec.dtype for spec in self._specs]
        return [tf.raw_ops.QueueDequeueManyV2(handle=handle, n=count, component_types=dtypes) for handle in handles]


def close_queues(queues: list[Any]) -> None:
    """Close queues, which ends a running read at its next element."""
    with tf.__internal__.eager_context.eager_mode():  # A program may let go of its data within a graph.
        for queue in queues:
            queue.close(cancel_pending_enqueues=True)


def _parts(iterator: Any) -> list[Any]:
    return [part for part in tf.nest.flatten(iterator.get_next()) if part is not None]
