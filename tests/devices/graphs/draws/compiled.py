"""Draws of a program, computed as in a step of several devices: copied from a scratch graph, and compiled by XLA."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import is_effect
from tpudata.devices.graphs.random_graph import rewrite_random_operations
from tpudata.estimator.fetching.replay import Replay
from tpudata.estimator.state.blueprint import trace_function

SEED = 3


class Compiled:
    """A program whose results depend on the step and the replica.

    Attributes:
        text: the compiled program as StableHLO.
        shapes: static shapes of the results.
        variables: its variables by name.

    Args:
        build: function that builds a structure of tensors in a graph.
        runs_updates: whether to run the assignments of variables in the program's graph, too.
    """

    def __init__(self, build: Callable[[], Any], runs_updates: bool = False) -> None:
        specs = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)]
        blueprint = trace_function(lambda step, replica: build(), specs, SEED)  # noqa: ARG005
        step, replica = blueprint.arguments
        initializers = {info.initializer_name for info in blueprint.variables}
        effects = [op for op in blueprint.graph.get_operations() if is_effect(op) and op.name not in initializers]
        replay = Replay(
            blueprint,
            blueprint.result,
            [op for op in effects if op.type.startswith("Assign") or op.type == "RngReadAndSkip"]
            if runs_updates
            else (),
            rewrite=functools.partial(rewrite_random_operations, step=step.op.name, replica=replica.op.name),
        )
        values = blueprint.compute_initial_values(blueprint.variables)
        self._first = {name: value.numpy() for name, value in values.items()}
        self.variables = {name: tf.Variable(value) for name, value in values.items()}

        def run(step: Any, replica: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            return replay((step, replica), lambda name: graph.capture(self.variables[name].handle))

        self._run = tf.function(run, input_signature=specs, jit_compile=True, autograph=False)
        self.shapes = [tensor.shape for tensor in self._run.get_concrete_function().outputs]
        self.text = self._run.experimental_get_compiler_ir(*specs)(stage="stablehlo")

    def __call__(self, step: int = 0, replica: int = 0) -> Any:
        """Return the results for the variables' initial values, as arrays."""
        for name, value in self._first.items():
            self.variables[name].assign(value)
        results = self._run(tf.constant(step, tf.int64), tf.constant(replica))
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), results)
