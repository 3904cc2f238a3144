"""Loop of steps on all replicas as one program, exported for TPUs without one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from tpudata.estimator.spmd.lowering import ReplicaProgram

_AXIS = "replicas"
# Largest number of bytes of a loop's batches on one device: a large batch makes loops shorter.
_LOOP_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class DeviceLoop:
    """Exported loop of steps.

    Attributes:
        exported: the program, a function of (number of steps, batches, variables).
        axis: name of the mesh's axis.
        partitions: for each flat argument the elements of its PartitionSpec.
        donated: numbers of the flat arguments whose memory the results take: the variables.
        steps: number of steps for which it has room.
        batch_bytes: bytes of a step's batch on one device.
    """

    exported: export.Exported
    axis: str
    partitions: Sequence[Sequence[str | None]]
    donated: Sequence[int]
    steps: int
    batch_bytes: int


def export_loop(program: ReplicaProgram, replicas: int, iterations: int) -> DeviceLoop:
    """Export a loop of a program's steps.

    Args:
        program: the step of one replica.
        replicas: number of replicas.
        iterations: largest number of steps; large batches make it smaller.
    """
    size = sum(item.dtype.itemsize * int(np.prod(item.shape)) for item in program.inputs)
    steps = max(1, min(iterations, _LOOP_BYTES // max(1, size)))
    count = len(program.inputs)
    shapes = program.exported.in_avals[count:]
    mesh = AbstractMesh((replicas,), (_AXIS,))
    replicated, stacked, per_replica = PartitionSpec(), PartitionSpec(None, _AXIS), PartitionSpec(_AXIS)

    def loop(limit: Any, *arguments: Any) -> Any:
        batches, variables = arguments[:count], dict(zip(program.variables, arguments[count:], strict=True))
        results = [jnp.zeros(item.shape, item.dtype) for item in program.results]

        def step(carry: Any) -> Any:
            number, state, _ = carry
            values, written = program([batch[number, 0] for batch in batches], state)
            return number + 1, {**state, **written}, values

        start = (jnp.zeros((), jnp.int32), variables, results)
        _, state, values = lax.while_loop(lambda carry: carry[0] < limit, step, start)
        return [state[name] for name in program.variables], [value[None] for value in values]

    specs = (replicated, *[stacked] * count, *[replicated] * len(shapes))
    structs = [
        ((), np.dtype(np.int32)),
        *(((steps, replicas, *item.shape), item.dtype) for item in program.inputs),
        *((item.shape, item.dtype) for item in shapes),
    ]
    donated = tuple(range(1 + count, len(specs)))
    with jax.enable_x64(True):
        mapped = jax.shard_map(loop, mesh=mesh, in_specs=specs, out_specs=(replicated, per_replica), check_vma=False)
        exported = export.export(jax.jit(mapped, donate_argnums=donated), platforms=["tpu"])(
            *(
                jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
                for (shape, dtype), spec in zip(structs, specs, strict=True)
            )
        )
    return DeviceLoop(exported, _AXIS, [tuple(spec) for spec in specs], donated, steps, size)
