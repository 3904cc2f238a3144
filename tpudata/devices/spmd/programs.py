"""Programs of all replicas: a loop of training steps, and a single call."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tpudata.devices.spmd.lowering import ReplicaProgram
from tpudata.devices.spmd.mesh import AXIS

_GLOBAL_STEP = "global_step"
_ALL = PartitionSpec()
_EACH = PartitionSpec(AXIS)
_STACKED = PartitionSpec(None, AXIS)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Variables of a program, by how it treats them.

    Attributes:
        written: variables with one value for all replicas that the program writes; their arrays are donated.
        read: variables with one value that it only reads.
        own: variables with a value of each replica; their arrays are donated.
        differing: those of `written` for which replicas compute different values; all take the first replica's.
    """

    written: tuple[str, ...]
    read: tuple[str, ...]
    own: tuple[str, ...]
    differing: frozenset[str]

    @classmethod
    def of(cls, program: ReplicaProgram, own: Collection[str], differing: Collection[str]) -> "Layout":
        """Return the layout of a program, given the variables with a value of each replica, and the differing ones."""
        shared = [name for name in program.variables if name not in own]
        return cls(
            tuple(name for name in shared if name in program.updates),
            tuple(name for name in shared if name not in program.updates),
            tuple(name for name in program.variables if name in own),
            frozenset(differing) & frozenset(program.updates) - frozenset(own),
        )


class LoopOutput(NamedTuple):
    """Output of a loop of steps.

    Attributes:
        goes_on: scalar bool, whether no loss was NaN; None of a single step, which no other follows in a call.
        report: int64 [2, capacity], what `read_report` returns, in one array: to fetch a second one from 8 devices takes as long
            as 10 variables. The first row has the global step after each step, -1 for those that were not done; the second has the
            bits of the losses.
        finite: bool [checked], whether all values of each checked variable are finite; None if none is checked.
        fetched: values [replicas, ...] of the last step.
        each: values [capacity, replicas, ...] of each step.
    """

    goes_on: Any
    report: Any
    finite: Any
    fetched: Any
    each: Any

    def read_report(self) -> tuple[Any, Any]:
        """Return the global step after each step that was done (NumPy, int64), and the mean loss of all replicas (float32)."""
        report = np.asarray(self.report)
        if report[0, -1] < 0:
            report = report[:, : np.count_nonzero(report[0] >= 0)]
        return report[0], report[1].astype(np.int32).view(np.float32)


def compile_loop(
    program: ReplicaProgram, layout: Layout, mesh: Mesh, capacity: int | None, checked: Sequence[str], num_fetched: int
) -> Callable[..., tuple[Any, Any, LoopOutput]]:
    """Compile a loop of steps on all devices, without Python between them.

    Args:
        program: a step: function of the replica's number (int32 scalar) and the batch that returns the loss (float32 scalar), the
            values to fetch from the last step, and the values to return from each step.
        layout: layout of its variables.
        mesh: the devices.
        capacity: largest number of steps; None for exactly one, which needs no loop, nor copies of its variables.
        checked: names of the variables whose values must remain finite.
        num_fetched: number of the values to fetch.

    Returns:
        A function of the arrays of the layout's three groups; whether to run any step (scalar bool; None for a single step); the
        first step in the stacks and the number of steps (int32 [2]); the stacks of batches [steps, replicas, ...]; and arrays that
        all steps get. It returns the arrays of the first and the third group, and a LoopOutput.
    """

    def run(
        written: Any, read: Any, own: Any, goes_on: Any, portion: Any, stacks: Any, given: Any
    ) -> tuple[Any, Any, LoopOutput]:
        first, count = portion
        replica = lax.axis_index(AXIS).astype(jnp.int32)
        constant = dict(zip(layout.read, read, strict=True))

        def step(number: Any, written: Any, own: Any) -> tuple[Any, Any, list[Any]]:
            batch = [lax.dynamic_index_in_dim(stack, first + number, keepdims=False)[0] for stack in stacks]
            return _step(program, layout, replica, [*batch, *given], constant, written, own)

        def body(carry: Any) -> Any:
            number, _, written, own, losses, steps, _, each = carry
            written, own, (loss, *values) = step(number, written, own)
            loss = lax.pmean(loss, AXIS)
            now = dict(zip(layout.written, written, strict=True)).get(_GLOBAL_STEP, constant.get(_GLOBAL_STEP, 0))
            each = tuple(
                lax.dynamic_update_index_in_dim(items, item, number, 0)
                for items, item in zip(each, values[num_fetched:], strict=True)
            )
            return (
                number + 1,
                ~jnp.isnan(loss),
                written,
                own,
                losses.at[number].set(loss),
                steps.at[number].set(jnp.asarray(now, jnp.int64)),
                tuple(values[:num_fetched]),
                each,
            )

        def wanted(carry: Any) -> Any:
            return (carry[0] < count) & carry[1]

        _, *results = program.results
        begin = (
            jnp.int32(0),
            goes_on,
            written,
            tuple(item[0] for item in own),
            jnp.zeros([capacity or 1], jnp.float32),
            jnp.full([capacity or 1], -1, jnp.int64),
            tuple(jnp.zeros(item.shape, item.dtype) for item in results[:num_fetched]),
            tuple(jnp.zeros((capacity or 1, *item.shape), item.dtype) for item in results[num_fetched:]),
        )
        end = body(begin) if capacity is None else lax.while_loop(wanted, body, begin)
        _, goes_on, written, own, losses, steps, fetched, each = end
        by_name = dict(zip((*layout.written, *layout.own), (*written, *own), strict=True))
        finite = [jnp.isfinite(by_name[name]).all() if name in by_name else jnp.asarray(True) for name in checked]
        output = LoopOutput(
            None if capacity is None else goes_on,
            jnp.stack([steps, lax.bitcast_convert_type(losses, jnp.int32).astype(jnp.int64)]),
            jnp.stack(finite) if finite else None,
            tuple(item[jnp.newaxis] for item in fetched),
            tuple(item[:, jnp.newaxis] for item in each),
        )
        return written, tuple(item[jnp.newaxis] for item in own), output

    outputs = LoopOutput(_ALL, _ALL, _ALL, _EACH, _STACKED)
    return _on_mesh(run, mesh, (_ALL, _ALL, _EACH, _ALL, _ALL, _STACKED, _ALL), (_ALL, _EACH, outputs), donated=(0, 2))


def compile_call(program: ReplicaProgram, layout: Layout, mesh: Mesh) -> Callable[..., tuple[Any, Any, Any]]:
    """Compile one call of a program on all devices.

    Args:
        program: function of the replica's number (int32 scalar), the batch, and arrays that all replicas get.
        layout: layout of its variables.
        mesh: the devices.

    Returns:
        A function of the arrays of the layout's three groups, the stacks of batches [1, replicas, ...], and arrays that all
        replicas get. It returns the arrays of the first and the third group, and the program's results [replicas, ...].
    """

    def run(written: Any, read: Any, own: Any, stacks: Any, given: Any) -> tuple[Any, Any, Any]:
        replica = lax.axis_index(AXIS).astype(jnp.int32)
        inputs = [*(stack[0, 0] for stack in stacks), *given]
        constant = dict(zip(layout.read, read, strict=True))
        own = tuple(item[0] for item in own)
        written, own, results = _step(program, layout, replica, inputs, constant, written, own)
        return written, tuple(item[jnp.newaxis] for item in own), tuple(item[jnp.newaxis] for item in results)

    return _on_mesh(run, mesh, (_ALL, _ALL, _EACH, _STACKED, _ALL), (_ALL, _EACH, _EACH), donated=(0, 2))


def _on_mesh(
    function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any, donated: tuple[int, ...]
) -> Callable[..., Any]:
    # The check of replicated values does not see into exported modules.
    mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    compiled: Callable[..., Any] = jax.jit(mapped, donate_argnums=donated)
    return compiled


def _step(
    program: ReplicaProgram,
    layout: Layout,
    replica: Any,
    inputs: Sequence[Any],
    constant: Mapping[str, Any],
    written: Sequence[Any],
    own: Sequence[Any],
) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
    """Run one step of this replica; return the new values of the layout's first and third group, and the results."""
    values = {
        **constant,
        **dict(zip(layout.written, written, strict=True)),
        **dict(zip(layout.own, own, strict=True)),
    }
    results, updates = program([replica, *inputs], values)
    values |= updates | _first_replicas({name: updates[name] for name in sorted(layout.differing)})
    return tuple(values[name] for name in layout.written), tuple(values[name] for name in layout.own), results


def _first_replicas(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first replica's values, by one exchange for each dtype."""
    if lax.axis_size(AXIS) == 1:
        return dict(values)
    found: dict[str, Any] = {}
    for dtype in dict.fromkeys(value.dtype for value in values.values()):
        names = [name for name, value in values.items() if value.dtype == dtype]
        flat = jnp.concatenate([values[name].ravel() for name in names])
        exchanged = flat.astype(jnp.int32) if dtype.name == "bool" else flat
        total = lax.psum(jnp.where(lax.axis_index(AXIS) == 0, exchanged, jnp.zeros_like(exchanged)), AXIS).astype(dtype)
        begin = 0
        for name in names:
            size = values[name].size
            found[name] = total[begin : begin + size].reshape(values[name].shape)
            begin += size
    return found
