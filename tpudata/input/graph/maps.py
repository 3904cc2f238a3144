"""Maps of `tf.data` that run in the thread which asks for the element.

`Dataset.map` hands each element to a thread of TensorFlow's pool and waits for it, also with `synchronous=True`, and TensorFlow
turns maps that nothing forbids it into parallel ones, with a thread of their own beside the pool's. To wake these costs as much as
to read a hundred small records. Where a function takes no time in TensorFlow's threads, all that is lost: Python runs one thread at
a time, and to arrange tensors anew takes none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# These steps have no Python control flow over tensors; converting them would cost the first dataset a second.
as_written = tf.autograph.experimental.do_not_convert
PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
# Operations that pass tensors on as they are.
_PASSING = {"Placeholder", "Identity", "EnsureShape", "NoOp"}
# Keeps TensorFlow from making the map a parallel one; 2.15, whose TPUEstimator is fed too, does not know it.
_FORCED = (
    {"force_synchronous": True} if "force_synchronous" in inspect.signature(tf.raw_ops.MapDataset).parameters else {}
)


def map_in_thread(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """`dataset.map(function)`, in the thread that asks for the element.

    Args:
        dataset: elements of tensors.
        function: takes an element as in `Dataset.map`, and returns tensors in tuples and dicts; AutoGraph does not convert it.
    """
    traced = _traced(function, dataset.element_spec)
    spec = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), traced.structured_outputs)
    leaves = tf.nest.flatten(spec)
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=traced.captured_inputs,
        f=traced,
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
        **_FORCED,
    )
    mapped = tf.data.experimental.from_variant(variant, spec)
    # As TensorFlow's own maps do: what is to be ended with the dataset lives as long as those that are made of it.
    mapped._tpudata_input = dataset
    return mapped


def only_arranges(function: Callable[..., Any], spec: Any) -> bool:
    """Whether what a function does with elements of this `element_spec` is no work for TensorFlow."""
    operations = _traced(function, spec).graph.get_operations()
    return all(operation.type in _PASSING for operation in operations)


def _traced(function: Callable[..., Any], spec: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*(spec if isinstance(spec, tuple) else (spec,)))
