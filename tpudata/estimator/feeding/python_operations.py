"""Python in a dataset: operations that only run in the process that made the dataset."""

import itertools
from typing import Any

import tensorflow as tf

PYTHON_FIX = (
    "TensorFlow's operations instead of tf.py_function, tf.numpy_function and from_generator, and a dataset instead of tensors, "
    "such as that of tpudata.make_input_fn"
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset")
_IGNORE_STATE = 1  # tf.data's ExternalStatePolicy: do not fail because of a state, such as a table's.


def python_operations(dataset: Any) -> tuple[str, ...]:
    """Return the kinds of operations in a dataset, including nested functions, that run Python.

    For a dataset that TensorFlow cannot write as a graph, such as one of more than 2 GB in memory, the result is empty.
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
