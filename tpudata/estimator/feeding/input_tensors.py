"""Datasets of input_fns of TensorFlow 1 that return the tensors of a batch, such as an iterator's `get_next()`."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.feeding.sparse_parts import split_sparse
from tpudata.estimator.graph.input_graph import InputGraph
from tpudata.tensor_types import Array, Tensors

_v1 = tf.compat.v1
_NOT_INITIALIZED = (
    "input_fn: {} reads an iterator or a variable that has no value yet. Run its initializer in a hook's after_create_session, or "
    "add it to the collection TABLE_INITIALIZERS; better, return the tf.data.Dataset itself."
)


def are_tensors(element: object) -> bool:
    """Return whether an input_fn returned the tensors (or arrays) of a batch."""
    leaves = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor | tf.SparseTensor | np.ndarray) for leaf in leaves)


def make_tensor_dataset(call_input_fn: Callable[[], Tensors], seed: int | None) -> tf.data.Dataset:
    """Return a dataset of the batches of an input_fn that returns tensors.

    The input_fn is called in a separate graph, which a session on this host runs for each batch until an OutOfRangeError:
    iterators, their initializers in the collection TABLE_INITIALIZERS or run by a hook, and queues work as in TensorFlow 1. Unlike
    with a dataset, each batch is copied through Python.

    Args:
        call_input_fn: function that calls the input_fn.
        seed: seed of the graph, or None.

    Raises:
        TypeError: the input_fn did not return tensors.
    """
    graph = InputGraph()
    with graph.as_default(), tf.device("CPU:0"):
        _v1.set_random_seed(seed)
        element = call_input_fn()
        if not are_tensors(element):
            raise TypeError(
                f"input_fn must return tensors of features or of (features, labels) in a graph, too, got {type(element).__name__}. "
                "Better, return the tf.data.Dataset itself, without an iterator."
            )
        # Drop absent labels: a session does not fetch None.
        if isinstance(element, tuple) and len(element) == 2 and element[1] is None:
            element = element[0]
        element = split_sparse(element)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(element)]
        graph.set_initializers(
            [_v1.global_variables_initializer(), _v1.local_variables_initializer(), _v1.tables_initializer()]
        )

    def generate_batches() -> Iterator[tuple[Array, ...]]:
        """Yield the tensors of one batch after the other, from a session that runs until an OutOfRangeError."""
        session = graph.open_session()
        coordinator = tf.train.Coordinator()
        threads: list[threading.Thread] = []
        try:
            for runner in graph.get_collection(_v1.GraphKeys.QUEUE_RUNNERS):
                threads += runner.create_threads(session, coordinator, daemon=True, start=True)
            while True:
                try:
                    values = session.run(tensors)
                except tf.errors.OutOfRangeError:
                    return
                except tf.errors.FailedPreconditionError as error:
                    raise ModelFnValueError(_NOT_INITIALIZED.format(error.op.name)) from None
                yield tuple(values)
        finally:
            coordinator.request_stop()
            graph.close_session()
            coordinator.join(threads)

    flat_batches = tf.data.Dataset.from_generator(
        generate_batches, output_signature=tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
    )
    batches = flat_batches.map(lambda *components: tf.nest.pack_sequence_as(element, components))
    return batches.prefetch(2)  # During a step, the session computes the next batches.
