"""TensorFlow's private names that tpudata uses, all of them: TensorFlow 2.20 and 2.21 have them."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.tpu.tpu_function import tpu_shard_context

__all__ = [
    "MERGING_MODULES",
    "FuncGraph",
    "control_flow_ops",
    "eager_context",
    "eager_mode",
    "kernels",
    "op_def_registry",
    "tpu_shard_context",
]
# Modules of functions for all replicas at once that each replica calls for itself. tf.train.ExponentialMovingAverage averages
# values over replicas by one of the first; a Keras optimizer that was made outside updates variables by one of the second.
MERGING_MODULES = ("tensorflow.python.training.moving_averages", "tensorflow.python.distribute.distribute_lib")


def eager_mode() -> AbstractContextManager[Any]:
    """Return a context in which operations run at once, also within a graph."""
    mode: AbstractContextManager[Any] = tf.__internal__.eager_context.eager_mode()
    return mode
