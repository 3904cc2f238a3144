"""Steps on all replicas as one program, exported for TPUs without one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tpudata.devices.batches.feeder import STACK_BYTES
from tpudata.devices.spmd.lowering import lower
from tpudata.devices.spmd.mesh import AXIS
from tpudata.devices.spmd.programs import Layout, compile_call, compile_loop
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.steps.step import local_names
from tpudata.estimator.tpu_check.compilation import StepPart
from tpudata.estimator.tracing.differences import differing_variables
from tpudata.estimator.tracing.traced_model import TracedModel

_ALL, _EACH, _STACKED = PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(None, AXIS)


@dataclasses.dataclass(frozen=True)
class DeviceLoop:
    """Exported program of a mode's steps on all replicas.

    Attributes:
        exported: the program.
        axis: name of the mesh's axis.
        partitions: for each argument the elements of its PartitionSpec.
        donated: numbers of the arguments whose memory the results take: the variables that change.
        steps: number of steps for which it has room.
        batch_bytes: bytes of a step's batch on one device.
    """

    exported: export.Exported
    axis: str
    partitions: Sequence[Sequence[str | None]]
    donated: Sequence[int]
    steps: int
    batch_bytes: int


def export_loop(traced: TracedModel, part: StepPart, iterations: int) -> DeviceLoop:
    """Export the program that runs a part of a step: in training a loop, as on devices that exist, otherwise one call.

    Args:
        traced: the model, traced for replicas.
        part: the part.
        iterations: largest number of steps in a loop; large batches make it smaller.

    Raises:
        ModelFnValueError: TensorFlow cannot lower the part.
    """
    program = lower(part.function, part.specs, part.variables)
    layout = Layout.of(program, local_names(traced), differing_variables(traced.blueprint, part.writes))
    replicas = traced.num_replicas or 1
    # shard_map takes a mesh without devices, too.
    mesh = cast(Mesh, AbstractMesh((replicas,), (AXIS,)))
    batch, given = program.inputs[1 : 1 + part.num_batch], program.inputs[1 + part.num_batch :]
    size = sum(item.dtype.itemsize * int(np.prod(item.shape)) for item in batch)
    stacks, steps = [], 1
    if traced.mode == ModeKeys.TRAIN and part.is_whole:
        steps = max(1, min(iterations, STACK_BYTES // max(1, size)))
        checked = [info.name for info in traced.blueprint.variables if info.trainable]
        floats = [name for name in checked if part.variables[name].dtype.is_floating]
        function = compile_loop(program, layout, mesh, steps, floats, num_fetched=0)
        scalars = [((), np.dtype(dtype), _ALL) for dtype in (bool, np.int32, np.int32)]
    else:
        function, scalars = compile_call(program, layout, mesh), []
    stacks = [((steps, replicas, *item.shape), item.dtype, _STACKED) for item in batch]
    shapes = dict(zip(program.variables, program.exported.in_avals[len(program.inputs) :], strict=True))
    groups = [
        [(shapes[name].shape, shapes[name].dtype, _ALL) for name in layout.written],
        [(shapes[name].shape, shapes[name].dtype, _ALL) for name in layout.read],
        [((replicas, *shapes[name].shape), shapes[name].dtype, _EACH) for name in layout.own],
    ]
    structure = (*map(tuple, groups), *scalars, tuple(stacks), tuple((item.shape, item.dtype, _ALL) for item in given))
    return _export(function, structure, len(groups[0]), len(groups[1]), len(groups[2]), mesh, steps, size)


def _export(
    function: Callable[..., Any],
    structure: Any,
    written: int,
    read: int,
    own: int,
    mesh: Mesh,
    steps: int,
    batch_bytes: int,
) -> DeviceLoop:
    leaves, tree = jax.tree.flatten(structure, is_leaf=_is_argument)
    donated = (*range(written), *range(written + read, written + read + own))
    # Flat arguments and results: export only serialises some structures.
    flat = jax.jit(
        lambda *arrays: jax.tree.leaves(function(*jax.tree.unflatten(tree, arrays))),
        donate_argnums=donated,
        keep_unused=True,
    )
    with jax.enable_x64(True):
        exported = export.export(flat, platforms=["tpu"])(
            *(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, dtype, spec in leaves)
        )
    return DeviceLoop(exported, AXIS, [tuple(spec) for _, _, spec in leaves], donated, steps, batch_bytes)


def _is_argument(item: Any) -> bool:
    """Return whether an item is a triple of shape, dtype and PartitionSpec."""
    return isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], PartitionSpec)
