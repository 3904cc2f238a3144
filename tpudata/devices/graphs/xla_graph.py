"""Graphs that are built for XLA."""

from typing import Any

import tensorflow as tf

from tpudata.tensorflow_internals import control_flow_ops


def mark_for_xla(graph: Any) -> None:
    """Mark a graph as one for XLA, for which TensorFlow builds some operations differently.

    Gradients of conditions and loops compile only with the mark. TensorFlow looks for it at the graph and those around it; at the
    graph itself, variables would take it for a loop.
    """
    around = tf.Graph()
    with around.as_default():
        control_flow_ops.XLAControlFlowContext().Enter()
    graph.outer_graph = around
