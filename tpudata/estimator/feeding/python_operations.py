"""Python in a dataset: operations that run in the process that made the dataset, and in no other."""

import itertools
from typing import Any

import tensorflow as tf

PYTHON_FIX = (
    "TensorFlow's operations in place of tf.py_function, tf.numpy_function and from_generator, and a dataset in place of tensors, "
    "as tpudata.make_input_fn gives it"
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset")
_IGNORE_STATE = 1  # tf.data's ExternalStatePolicy: a state, such as a table's, is no reason to fail.


def python_operations(dataset: Any) -> tuple[str, ...]:
    """Return which kinds of operations in a dataset run Python, those in nested functions too.

    A dataset that TensorFlow cannot write as a graph, such as one of more than 2 GB in memory, counts as free of them.
    """
    variant = tf.data.experimental.to_variant(dataset)
    try:
        written = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE_STATE)
    except tf.errors.OpError:
        return ()
    graph = tf.compat.v1.GraphDef.FromString(written.numpy())
    nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
    kinds = {node.op for node in nodes}
    return tuple(kind for kind in _PYTHON if kind in kinds)
