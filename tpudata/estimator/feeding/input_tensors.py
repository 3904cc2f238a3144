"""Datasets of input_fns of TensorFlow 1 that return the tensors of a batch, such as an iterator's `get_next()`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_v1 = tf.compat.v1


def are_tensors(element: Any) -> bool:
    """Return whether an input_fn returned the tensors (or arrays) of a batch."""
    found = [item for item in tf.nest.flatten(element) if item is not None]
    return bool(found) and all(isinstance(item, tf.Tensor | np.ndarray) for item in found)


def dataset_of_tensors(call: Callable[[], Any], seed: int | None) -> Any:
    """Return a dataset of the batches of an input_fn that returns tensors.

    It is called in a separate graph, which a session on this host runs for each batch until it is out of range: iterators, their
    initializers in the collection TABLE_INITIALIZERS, and queues work as in TensorFlow 1. Unlike with a dataset, each batch is
    copied through Python.

    Args:
        call: function that calls the input_fn.
        seed: seed of the graph, or None.

    Raises:
        TypeError: the input_fn returned no tensors.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.device("CPU:0"):
        _v1.set_random_seed(seed)
        element = call()
        if not are_tensors(element):
            raise TypeError(
                f"input_fn must return tensors of features or of (features, labels) in a graph, too, got {type(element).__name__}. "
                "Better, return the tf.data.Dataset itself, without an iterator."
            )
        if isinstance(element, tuple) and len(element) == 2 and element[1] is None:
            element = element[0]
        tensors = [tf.convert_to_tensor(item) for item in tf.nest.flatten(element)]
        begin = [_v1.global_variables_initializer(), _v1.local_variables_initializer(), _v1.tables_initializer()]

    def batches() -> Iterator[tuple[Any, ...]]:
        # The session does not know the logical devices of this process.
        session = _v1.Session(graph=graph, config=_v1.ConfigProto(device_count={"GPU": 0}))
        coordinator = tf.train.Coordinator()
        threads: list[Any] = []
        try:
            session.run(begin)
            for runner in graph.get_collection(_v1.GraphKeys.QUEUE_RUNNERS):
                threads += runner.create_threads(session, coordinator, daemon=True, start=True)
            while True:
                try:
                    values = session.run(tensors)
                except tf.errors.OutOfRangeError:
                    return
                yield tuple(values)
        finally:
            coordinator.request_stop()
            session.close()
            coordinator.join(threads)

    flat = tf.data.Dataset.from_generator(
        batches, output_signature=tuple(tf.TensorSpec(item.shape, item.dtype) for item in tensors)
    )
    return flat.map(lambda *items: tf.nest.pack_sequence_as(element, items)).prefetch(2)
