"""Steps of a model_fn on several CPU devices of jax: one program that sums over them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.interpreters import mlir
from jax.sharding import Mesh, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tpudata.estimator.fetching.replay import Replay, handles_of
from tpudata.estimator.graph.collectives import lower_collectives
from tpudata.estimator.graph.keras_state import fresh_keras_state
from tpudata.estimator.state.blueprint import Blueprint, discover
from tpudata.estimator.tracing.effects import effects_of_training
from tpudata.estimator.tracing.replica_context import replica_context

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

    return discover(build, (tuple(specs), tf.TensorSpec([], tf.int32)), seed)


def run_alone(model: Callable[..., Any], batches: Sequence[Batch]) -> Run:
    """Run a step for each whole batch with TensorFlow, without jax; arguments as of `run_replicas`."""
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in batches[0]]
    blueprint = trace(model, specs, 1)
    replay, outputs = _replay(blueprint, 1)
    variables = _variables(blueprint)
    step = tf.function(lambda *batch: replay((batch, 0), handles_of(variables)), autograph=False)
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
        return replay((batch, replica), handles_of(variables))

    traced = tf.function(step, jit_compile=True, autograph=False)
    arguments = [tf.TensorSpec([], tf.int32), *specs]
    captures = traced.get_concrete_function(*arguments).captured_inputs
    names = [next(name for name, item in variables.items() if item.handle is handle) for handle in captures]
    program = traced.experimental_get_compiler_ir(*arguments)(stage="stablehlo_serialized")
    with jax.enable_x64(True):
        # A parameter that the program does not use is kept, in the order of the captures.
        run, updated = _compile(program, len(arguments), num_replicas)
        state = [np.broadcast_to(variables[name].numpy(), (num_replicas, *variables[name].shape)) for name in names]
        losses = []
        results: list[Any] = []
        for batch in parts:
            results = [np.asarray(item) for item in run(*batch, *state)]
            losses.append(results[0])
            for number, value in zip(updated, results[1 + len(outputs) :], strict=True):
                state[number] = value
    fixed = {name: np.broadcast_to(item.numpy(), (num_replicas, *item.shape)) for name, item in variables.items()}
    named = dict(zip(outputs, results[1 : 1 + len(outputs)], strict=True))
    return Run(blueprint, np.stack(losses), named, fixed | dict(zip(names, state, strict=True)), replay.writes)


def _replay(blueprint: Blueprint, num_replicas: int) -> tuple[Replay, list[str]]:
    """Return the step of a model for its loss and outputs, and the names of the outputs."""
    named = blueprint.result.predictions or {}
    with blueprint.graph.as_default():
        outputs = [tf.convert_to_tensor(item) for item in named.values()]
    lower = functools.partial(lower_collectives, num_replicas=num_replicas)
    wanted = [blueprint.result.loss, *outputs]
    return Replay(blueprint, wanted, effects_of_training(blueprint), rewrite=lower), list(named)


def _variables(blueprint: Blueprint) -> dict[str, Any]:
    initial = blueprint.initial_values(blueprint.variables)
    return {info.name: tf.Variable(initial[info.name], name=info.name) for info in blueprint.variables}


def _compile(program: bytes, num_arguments: int, num_replicas: int) -> tuple[Callable[..., Any], list[int]]:
    """Return a function of stacked batches and variables, and the numbers of the variables that it updates, in order."""
    with mlir.make_ir_context():
        module: Any = ir.Module.parse(program)
        main = next(item for item in module.body.operations if item.name.value == "main")
        aliases = module.operation.attributes["mhlo.input_output_alias"]
        alias = {
            int(item["output_index"][0]): int(item["alias"]["parameter_number"]) - num_arguments for item in aliases
        }
        _adapt(module)
        kinds = [
            [jax.ShapeDtypeStruct(tuple(item.shape), _dtype(str(item.element_type))) for item in types]
            for types in (main.type.inputs, main.type.results)
        ]
        artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    inputs, outputs = kinds
    like = jax.jit(lambda *_: tuple(jax.numpy.zeros(item.shape, item.dtype) for item in outputs), keep_unused=True)
    template = export.export(like, platforms=["cpu"], disabled_checks=[export.DisabledSafetyCheck.platform()])(*inputs)
    exported = dataclasses.replace(template, mlir_module_serialized=artifact)

    def one(*stacked: Any) -> Any:
        replica = jax.lax.axis_index("replicas").astype(np.int32)
        return [item[None] for item in exported.call(replica, *(item[0] for item in stacked))]

    mesh = Mesh(np.array(jax.devices()[:num_replicas]), ("replicas",))
    split = PartitionSpec("replicas")
    run = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))
    return run, [alias[number] for number in sorted(alias)]


def _dtype(name: str) -> Any:
    """Return the dtype of a type of MLIR, such as f32 or ui8."""
    if name == "bf16":
        return jax.numpy.bfloat16
    if name == "i1":
        return np.dtype(bool)
    kind = {"f": "float", "ui": "uint", "i": "int"}[name.rstrip("0123456789")]
    return np.dtype(f"{kind}{name.lstrip('fui')}")


def _adapt(module: Any) -> None:
    """Change a module for jax, where replicas are partitions of one program."""
    count = 0

    def visit(operation: Any) -> Any:
        nonlocal count
        if operation.name == "stablehlo.all_reduce":
            count += 1
            handle = f"#stablehlo.channel_handle<handle = {count}, type = 1>"
            operation.attributes["channel_handle"] = ir.Attribute.parse(handle)
            operation.attributes["use_global_device_ids"] = ir.UnitAttr.get()
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
