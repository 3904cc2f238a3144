"""Steps of a model_fn on several CPU devices of jax: one program that sums over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, PartitionSpec

from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.devices.graphs.replica_context import replica_context
from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.state.blueprint import Blueprint, trace_function
from tpudata.estimator.tracing.effects import list_training_effects

Batch = Sequence[np.ndarray]


class Run(NamedTuple):
    """Steps on several devices.

    Attributes:
        blueprint: the traced model.
        losses: [steps, replicas].
        outputs: the spec's predictions in the last step, each [replicas, ...].
        variables: values after the last step, by name, each [replicas, ...].
        writes: names of the variables that a step may change.
    """

    blueprint: Blueprint
    losses: np.ndarray
    outputs: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]
    writes: frozenset[str]


def trace(model: Callable[..., Any], specs: Sequence[Any], num_replicas: int, seed: int = 1) -> Blueprint:
    """Trace `model`, a function of the batch's tensors that returns a training spec, as one of the replicas."""

    def build(batch: Any, replica: Any) -> Any:
        tf.compat.v1.train.get_or_create_global_step()
        with replica_context(num_replicas, replica), fresh_keras_state(seed):
            return model(*batch)

    return trace_function(build, (tuple(specs), tf.TensorSpec([], tf.int32)), seed)


def run_alone(model: Callable[..., Any], batches: Sequence[Batch]) -> Run:
    """Run a step for each whole batch with TensorFlow, without jax; arguments as of `run_replicas`."""
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in batches[0]]
    blueprint = trace(model, specs, 1)
    replay, outputs = _replay(blueprint, 1)
    variables = _variables(blueprint)
    step = tf.function(lambda *batch: replay((batch, 0), make_handle_getter(variables)), autograph=False)
    results = [step(*batch) for batch in batches]
    named = {name: item.numpy()[None] for name, item in zip(outputs, results[-1][1:], strict=True)}
    losses = np.array([[item[0].numpy()] for item in results])
    return Run(blueprint, losses, named, {name: item.numpy()[None] for name, item in variables.items()}, replay.writes)


def run_replicas(model: Callable[..., Any], batches: Sequence[Batch], num_replicas: int) -> Run:
    """Run a step for each batch, whose rows are split over the replicas.

    Args:
        model: function of the batch's tensors that returns a training spec; its predictions are outputs.
        batches: arrays of the whole batch.
        num_replicas: number of replicas and devices.
    """
    parts = [[array.reshape(num_replicas, -1, *array.shape[1:]) for array in batch] for batch in batches]
    specs = [tf.TensorSpec(array.shape[1:], array.dtype) for array in parts[0]]
    blueprint = trace(model, specs, num_replicas)
    replay, outputs = _replay(blueprint, num_replicas)
    variables = _variables(blueprint)

    def step(replica: Any, *batch: Any) -> Any:
        return replay((batch, replica), make_handle_getter(variables))

    program = lower(step, [tf.TensorSpec([], tf.int32), *specs], variables)
    values = {name: np.stack([item.numpy()] * num_replicas) for name, item in variables.items()}
    losses = []
    results: list[Any] = []
    with jax.enable_x64(True):
        run = _compile(program, num_replicas)
        for batch in parts:
            results, updates = run(batch, {name: values[name] for name in program.variables})
            losses.append(np.asarray(results[0]))
            values |= {name: np.asarray(item) for name, item in updates.items()}
    named = {name: np.asarray(item) for name, item in zip(outputs, results[1:], strict=True)}
    return Run(blueprint, np.stack(losses), named, values, replay.writes)


def _replay(blueprint: Blueprint, num_replicas: int) -> tuple[Replay, list[str]]:
    """Return the step of a model for its loss and outputs, and the names of the outputs."""
    named = blueprint.result.predictions or {}
    with blueprint.graph.as_default():
        outputs = [tf.convert_to_tensor(item) for item in named.values()]
    lower = functools.partial(lower_collectives, num_replicas=num_replicas)
    wanted = [blueprint.result.loss, *outputs]
    return Replay(blueprint, wanted, list_training_effects(blueprint), rewrite=lower), list(named)


def _variables(blueprint: Blueprint) -> dict[str, Any]:
    initial = blueprint.compute_initial_values(blueprint.variables)
    return {info.name: tf.Variable(initial[info.name], name=info.name) for info in blueprint.variables}


def _compile(program: ReplicaProgram, num_replicas: int) -> Callable[..., Any]:
    """Return a function of batches and variables [replicas, ...] that returns results and new values [replicas, ...]."""

    def one(batch: Any, variables: Any) -> Any:
        replica = jax.lax.axis_index("replicas").astype(np.int32)
        batch, variables = jax.tree.map(lambda item: item[0], (batch, variables))
        return jax.tree.map(lambda item: item[None], program([replica, *batch], variables))

    mesh = Mesh(np.array(jax.devices()[:num_replicas]), ("replicas",))
    split = PartitionSpec("replicas")
    mapped = jax.shard_map(one, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    compiled: Callable[..., Any] = jax.jit(mapped)
    return compiled
