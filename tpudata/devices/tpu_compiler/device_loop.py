"""Steps on all replicas as one program, exported for TPUs on a machine without one."""

import dataclasses
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tpudata.devices.batches.feeder import STACK_BYTES
from tpudata.devices.spmd.lowering import ReplicaProgram
from tpudata.devices.spmd.mesh import AXIS
from tpudata.devices.spmd.programs import Layout, compile_call, compile_loop

_REPLICATED, _SPLIT, _STACKED = PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(None, AXIS)


@dataclasses.dataclass(frozen=True)
class DeviceLoop:
    """Exported program of a mode's steps on all replicas.

    Attributes:
        exported: the program.
        axis: name of the mesh's axis.
        partitions: for each argument the elements of its PartitionSpec.
        donated: indices of the arguments whose memory the results take: the variables that change.
        steps: largest number of steps that it runs.
        batch_bytes: bytes of a step's batch on one device.
    """

    exported: export.Exported
    axis: str
    partitions: Sequence[Sequence[str | None]]
    donated: Sequence[int]
    steps: int
    batch_bytes: int


def export_loop(
    program: ReplicaProgram,
    layout: Layout,
    replicas: int,
    num_batch: int,
    iterations: int | None,
    checked: Sequence[str] = (),
) -> DeviceLoop:
    """Export the program that runs a step on all replicas: a training loop, or one call.

    Args:
        program: a step: function of the replica's index, the tensors of its batch, and others.
        layout: layout of its variables.
        replicas: number of replicas.
        num_batch: number of tensors of the batch.
        iterations: largest number of steps in a loop, fewer if their batches exceed STACK_BYTES; None for one call.
        checked: names of the variables whose values a loop must keep finite.
    """
    # shard_map accepts a mesh without devices.
    mesh = cast(Mesh, AbstractMesh((replicas,), (AXIS,)))
    batch, constant_specs = program.inputs[1 : 1 + num_batch], program.inputs[1 + num_batch :]
    size = sum(spec.dtype.itemsize * int(np.prod(spec.shape)) for spec in batch)
    steps, scalars = 1, []
    if iterations is None:
        function = compile_call(program, layout, mesh)
    else:
        steps = max(1, min(iterations, STACK_BYTES // max(1, size)))
        function = compile_loop(program, layout, mesh, steps, checked, num_fetched=0)
        scalars = [((), np.dtype(bool), _REPLICATED), ((2,), np.dtype(np.int32), _REPLICATED)]
    shapes = dict(zip(program.variables, program.exported.in_avals[len(program.inputs) :], strict=True))
    written, read, per_replica = (
        [((*replica, *shapes[name].shape), shapes[name].dtype, spec) for name in names]
        for names, replica, spec in (
            (layout.written, (), _REPLICATED),
            (layout.read, (), _REPLICATED),
            (layout.per_replica, (replicas,), _SPLIT),
        )
    )
    stacks = tuple(((steps, replicas, *spec.shape), spec.dtype, _STACKED) for spec in batch)
    constants = tuple((spec.shape, spec.dtype, _REPLICATED) for spec in constant_specs)
    leaves, tree = jax.tree.flatten(
        (tuple(written), tuple(read), tuple(per_replica), *scalars, stacks, constants), is_leaf=_is_argument
    )
    first_per_replica = len(written) + len(read)
    donated = (*range(len(written)), *range(first_per_replica, first_per_replica + len(per_replica)))
    # Flat arguments and results, as export cannot serialise all structures.
    flat = jax.jit(
        lambda *arrays: jax.tree.leaves(function(*jax.tree.unflatten(tree, arrays))),
        donate_argnums=donated,
        keep_unused=True,
    )
    with jax.enable_x64(True):
        exported = export.export(flat, platforms=["tpu"])(
            *(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, dtype, spec in leaves)
        )
    return DeviceLoop(exported, AXIS, [tuple(spec) for _, _, spec in leaves], donated, steps, size)


def _is_argument(item: object) -> bool:
    """Return whether an item is a triple of shape, dtype and PartitionSpec."""
    return isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], PartitionSpec)
