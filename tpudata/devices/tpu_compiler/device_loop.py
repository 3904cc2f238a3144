"""Steps on all replicas as one program, exported for TPUs on a machine without one."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, cast

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
        exported: the program, whose arguments and results are flat sequences of arrays.
        axis: name of the mesh's axis.
        partitions: for each argument the elements of its PartitionSpec.
        donated: indices of the arguments whose memory the results take: the variables that change.
        steps: maximum number of steps that one run of the program does.
        batch_bytes: bytes of a step's batch on one device.
    """

    exported: export.Exported
    axis: str
    partitions: Sequence[Sequence[str | None]]
    donated: Sequence[int]
    steps: int
    batch_bytes: int


class _Argument(NamedTuple):
    """Array that is an argument of the exported program: its shape over all devices, its dtype, and its partition."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    partition: PartitionSpec


def export_loop(
    program: ReplicaProgram,
    layout: Layout,
    num_replicas: int,
    num_batch_tensors: int,
    max_steps: int | None,
    checked_names: Sequence[str] = (),
) -> DeviceLoop:
    """Export the program that runs a step on all replicas: a training loop, or one call.

    Args:
        program: a step: a function of the replica's index, the tensors of its batch, and tensors that all replicas get.
        layout: layout of its variables.
        num_replicas: number of replicas.
        num_batch_tensors: number of tensors of the batch, which come first after the index.
        max_steps: maximum number of steps in a loop, fewer if their batches exceed STACK_BYTES; None to export one call
            instead of a loop.
        checked_names: names of the variables whose values a loop must keep finite.
    """
    # shard_map accepts a mesh without devices.
    mesh = cast(Mesh, AbstractMesh((num_replicas,), (AXIS,)))
    # The inputs are the replica's index, the batch, and the tensors that all replicas get.
    first_shared = 1 + num_batch_tensors
    batch_specs, shared_specs = program.inputs[1:first_shared], program.inputs[first_shared:]
    batch_bytes = sum(spec.dtype.itemsize * int(np.prod(spec.shape)) for spec in batch_specs)
    steps = 1
    loop_arguments = []
    if max_steps is None:
        function = compile_call(program, layout, mesh)
    else:
        # As many as a StackFeed puts in one stack.
        steps = max(1, min(max_steps, STACK_BYTES // max(1, batch_bytes)))
        function = compile_loop(program, layout, mesh, steps, checked_names, num_fetched=0)
        goes_on = _Argument((), np.dtype(bool), _REPLICATED)
        step_range = _Argument((2,), np.dtype(np.int32), _REPLICATED)
        loop_arguments = [goes_on, step_range]
    specs = dict(zip(program.variables, program.exported.in_avals[len(program.inputs) :], strict=True))
    written = tuple(_Argument(specs[name].shape, specs[name].dtype, _REPLICATED) for name in layout.written)
    read = tuple(_Argument(specs[name].shape, specs[name].dtype, _REPLICATED) for name in layout.read)
    per_replica = tuple(
        _Argument((num_replicas, *specs[name].shape), specs[name].dtype, _SPLIT) for name in layout.per_replica
    )
    stacks = tuple(_Argument((steps, num_replicas, *spec.shape), spec.dtype, _STACKED) for spec in batch_specs)
    shared_inputs = tuple(_Argument(spec.shape, spec.dtype, _REPLICATED) for spec in shared_specs)
    arguments, tree = jax.tree.flatten(
        (written, read, per_replica, *loop_arguments, stacks, shared_inputs),
        is_leaf=lambda node: isinstance(node, _Argument),
    )
    # The arguments of variables that change: `written` and `per_replica`.
    first_per_replica = len(written) + len(read)
    donated = (*range(len(written)), *range(first_per_replica, first_per_replica + len(per_replica)))
    # Flat arguments and results, since export cannot serialize all structures.
    flat_function = jax.jit(
        lambda *arrays: jax.tree.leaves(function(*jax.tree.unflatten(tree, arrays))),
        donate_argnums=donated,
        keep_unused=True,
    )
    # Otherwise jax would make 64-bit numbers, such as the global step, 32-bit ones.
    with jax.enable_x64(True):
        exported = export.export(flat_function, platforms=["tpu"])(
            *(
                jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, partition))
                for shape, dtype, partition in arguments
            )
        )
    partitions = [tuple(argument.partition) for argument in arguments]
    return DeviceLoop(exported, AXIS, partitions, donated, steps, batch_bytes)
