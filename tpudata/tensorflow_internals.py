"""All private names of TensorFlow that tpudata uses; TensorFlow 2.20 and 2.21 have them."""

from collections.abc import Callable, Sequence
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
    "find_function_graph",
    "find_slice_info",
    "get_profile_file_and_timer",
    "kernels",
    "op_def_registry",
    "replace_listeners",
    "tpu_shard_context",
]
# Modules whose functions `merge_call` would run once for all replicas together; here each replica calls them for itself. In the
# first, tf.train.ExponentialMovingAverage averages values over replicas; in the second, a Keras optimizer that was made outside of
# the model updates variables.
MERGING_MODULES = ("tensorflow.python.training.moving_averages", "tensorflow.python.distribute.distribute_lib")


def eager_mode() -> AbstractContextManager[None]:
    """Return a context in which operations run immediately, also within a graph."""
    mode: AbstractContextManager[None] = tf.__internal__.eager_context.eager_mode()
    return mode


def find_slice_info(variable: tf.Variable) -> Any:
    """Return the position of a v1 variable in the partitioned variable that it belongs to (a `SaveSliceInfo`), or None."""
    return variable._get_save_slice_info() if hasattr(variable, "_get_save_slice_info") else None


def find_function_graph(graph: tf.Graph, name: str) -> tf.Graph | None:
    """Return the graph of a function that `graph` calls, or None if it is unknown."""
    return getattr(graph._get_function(name), "graph", None)


def replace_listeners(
    hook: tf.compat.v1.train.CheckpointSaverHook,
    choose: Callable[
        [Sequence[tf.compat.v1.train.CheckpointSaverListener]], Sequence[tf.compat.v1.train.CheckpointSaverListener]
    ],
) -> None:
    """Replace the listeners of a CheckpointSaverHook with `choose(listeners)`."""
    hook._listeners = choose(hook._listeners)


def get_profile_file_and_timer(
    hook: tf.compat.v1.train.ProfilerHook,
) -> tuple[str, tf.compat.v1.train.SecondOrStepTimer]:
    """Return the path pattern of a v1 ProfilerHook's files, and its SecondOrStepTimer."""
    return str(hook._output_file), hook._timer
