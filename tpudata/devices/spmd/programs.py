"""Programs of all replicas: a loop of training steps, and a single call."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tpudata.devices.spmd.lowering import ReplicaProgram
from tpudata.devices.spmd.mesh import AXIS

_GLOBAL_STEP = "global_step"
_REPLICATED = PartitionSpec()
_SPLIT = PartitionSpec(AXIS)
_STACKED = PartitionSpec(None, AXIS)
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names of a program's variables in three groups, and which of `written` may diverge.

    Attributes:
        written: variables with one value for all replicas that the program writes; their arrays are donated.
        read: variables with one value for all replicas that the program only reads.
        per_replica: variables with a separate value on each replica; their arrays are donated.
        diverging: variables of `written` for which replicas may compute different values; all replicas take the first one's value.
    """

    written: tuple[str, ...]
    read: tuple[str, ...]
    per_replica: tuple[str, ...]
    diverging: frozenset[str]

    @classmethod
    def make(cls, program: ReplicaProgram, per_replica: Collection[str], diverging: Collection[str]) -> "Layout":
        """Return the layout of a program.

        Args:
            program: the program, which names the variables that it reads and writes.
            per_replica: names of variables with a separate value on each replica.
            diverging: names of variables for which replicas may compute different values.
        """
        shared = [name for name in program.variables if name not in per_replica]
        written = tuple(name for name in shared if name in program.updates)
        return cls(
            written,
            read=tuple(name for name in shared if name not in program.updates),
            per_replica=tuple(name for name in program.variables if name in per_replica),
            diverging=frozenset(diverging).intersection(written),
        )


# Arrays in a fixed order, such as that of the variables in one group of a layout.
ArrayTuple: TypeAlias = tuple[jax.Array, ...]


class _LoopState(NamedTuple):
    """Values that one iteration of a loop passes to the next, on one replica.

    Attributes:
        step_index: index of the next step, which is the number of steps done.
        goes_on: scalar bool, whether to run another step: False after a loss of NaN; None before the step of a program without a
            loop.
        written, per_replica: arrays of the layout's variables `written` and `per_replica`.
        losses: float32 [capacity].
        global_steps: int64 [capacity], -1 for steps that are not done.
        fetched: values of the last step.
        step_values: values [capacity, ...] of each step.
    """

    step_index: jax.Array
    goes_on: jax.Array | None
    written: ArrayTuple
    per_replica: ArrayTuple
    losses: jax.Array
    global_steps: jax.Array
    fetched: ArrayTuple
    step_values: ArrayTuple


class LoopOutput(NamedTuple):
    """Output of a loop of steps.

    Attributes:
        goes_on: scalar bool, whether to run further loops: False after a loss of NaN; None for a program of a single step.
        report: int64 [2, capacity], decoded by `read_report`. The first row has the global step after each step, -1 for steps
            that were not done; the second has the bits of the losses. The rows are one array, since fetching a second array from 8
            devices takes as long as fetching 10 variables.
        finite: bool [checked], whether all values of each checked variable are finite; None if no variable is checked.
        fetched: values [replicas, ...] of the last step.
        step_values: values [capacity, replicas, ...] of each step.
    """

    goes_on: jax.Array | None
    report: jax.Array
    finite: jax.Array | None
    fetched: ArrayTuple
    step_values: ArrayTuple

    def read_report(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return NumPy arrays with an entry for each step that was done: its global step, and the replicas' mean loss."""
        global_steps, loss_bits = np.asarray(self.report)
        num_done = np.count_nonzero(global_steps >= 0)  # -1 marks steps that were not done.
        # The losses are stored as the bits of float32 numbers.
        return global_steps[:num_done], loss_bits[:num_done].astype(np.int32).view(np.float32)


# Compiled loop: a function that `DeviceState.run` calls, as `compile_loop` describes it.
LoopProgram: TypeAlias = Callable[..., tuple[ArrayTuple, ArrayTuple, LoopOutput]]


def compile_loop(
    program: ReplicaProgram,
    layout: Layout,
    mesh: Mesh,
    capacity: int | None,
    checked_names: Sequence[str],
    num_fetched: int,
) -> LoopProgram:
    """Compile a loop of steps on all devices, without Python between them.

    Args:
        program: a step: a function of the replica's index (int32 scalar), the batch, and arrays that every step gets. It returns
            the loss (float32 scalar), the values to fetch from the last step, and the values to return from each step.
        layout: layout of its variables.
        mesh: the devices.
        capacity: maximum number of steps; None for exactly one step, which runs without a loop and without copies of its variables.
        checked_names: names of the variables whose values must remain finite.
        num_fetched: number of the values to fetch from the last step, the first that a step returns after the loss.

    Returns:
        A function of the arrays of the layout's variables `written`, `read` and `per_replica`; whether to run any step (scalar
        bool; None for a single step); the first step in the stacks and the number of steps (int32 [2]); the stacks of batches
        [steps, replicas, ...]; and arrays that every step gets. It returns the arrays of `written` and `per_replica`, and a
        LoopOutput.
    """

    def run(
        written: ArrayTuple,
        read: ArrayTuple,
        per_replica: ArrayTuple,
        goes_on: jax.Array | None,
        step_range: jax.Array,
        stacks: ArrayTuple,
        shared_inputs: ArrayTuple,
    ) -> tuple[ArrayTuple, ArrayTuple, LoopOutput]:
        """Run the loop on one replica; the arguments and results are its parts of those that `compile_loop` describes."""
        first_step, count = step_range
        replica = lax.axis_index(AXIS).astype(jnp.int32)
        read_values = dict(zip(layout.read, read, strict=True))

        def run_step(
            step_index: jax.Array, written: ArrayTuple, per_replica: ArrayTuple
        ) -> tuple[ArrayTuple, ArrayTuple, list[jax.Array]]:
            # On its device, an array that is split over the replicas has an axis of length 1.
            batch = [lax.dynamic_index_in_dim(stack, first_step + step_index, keepdims=False)[0] for stack in stacks]
            return _run_replica_step(
                program, layout, replica, [*batch, *shared_inputs], read_values, written, per_replica
            )

        def update(state: _LoopState) -> _LoopState:
            """Run the next step, and return the state after it."""
            step_index = state.step_index
            written, per_replica, (loss, *values) = run_step(step_index, state.written, state.per_replica)
            loss = lax.pmean(loss, AXIS)
            # A step that does not write the global step only reads it, or does not use it at all.
            global_step = dict(zip(layout.written, written, strict=True)).get(
                _GLOBAL_STEP, read_values.get(_GLOBAL_STEP, 0)
            )
            step_values = tuple(
                lax.dynamic_update_index_in_dim(stack, array, step_index, 0)
                for stack, array in zip(state.step_values, values[num_fetched:], strict=True)
            )
            return _LoopState(
                step_index=step_index + 1,
                goes_on=~jnp.isnan(loss),
                written=written,
                per_replica=per_replica,
                losses=state.losses.at[step_index].set(loss),
                global_steps=state.global_steps.at[step_index].set(jnp.asarray(global_step, jnp.int64)),
                fetched=tuple(values[:num_fetched]),
                step_values=step_values,
            )

        def continues(state: _LoopState) -> jax.Array:
            return (state.step_index < count) & state.goes_on

        _, *specs = program.results  # The first is the loss.
        initial = _make_initial_state(specs, capacity or 1, num_fetched, goes_on, written, per_replica)
        final = update(initial) if capacity is None else lax.while_loop(continues, update, initial)
        output = _make_loop_output(final, layout, checked_names, has_loop=capacity is not None)
        return final.written, tuple(array[jnp.newaxis] for array in final.per_replica), output

    output_specs = LoopOutput(
        goes_on=_REPLICATED, report=_REPLICATED, finite=_REPLICATED, fetched=_SPLIT, step_values=_STACKED
    )
    return _compile_on_mesh(
        run,
        mesh,
        in_specs=(_REPLICATED, _REPLICATED, _SPLIT, _REPLICATED, _REPLICATED, _STACKED, _REPLICATED),
        out_specs=(_REPLICATED, _SPLIT, output_specs),
        donated_indices=(0, 2),
    )


def _make_initial_state(
    specs: Sequence[jax.ShapeDtypeStruct],
    capacity: int,
    num_fetched: int,
    goes_on: jax.Array | None,
    written: ArrayTuple,
    per_replica: ArrayTuple,
) -> _LoopState:
    """Return the state of a loop on one replica before its first step.

    Args:
        specs: shapes and dtypes of the values that a step returns after the loss.
        capacity: maximum number of steps.
        num_fetched: number of values to fetch from the last step, the first ones in `specs`.
        goes_on: whether to run any step (scalar bool); None for a program of a single step.
        written: arrays of the layout's variables `written`.
        per_replica: arrays of the layout's variables `per_replica`, in which this replica has an axis of length 1.
    """
    return _LoopState(
        step_index=jnp.int32(0),
        goes_on=goes_on,
        written=written,
        per_replica=tuple(array[0] for array in per_replica),
        losses=jnp.zeros([capacity], jnp.float32),
        global_steps=jnp.full([capacity], -1, jnp.int64),  # -1 marks steps that are not done.
        fetched=tuple(jnp.zeros(spec.shape, spec.dtype) for spec in specs[:num_fetched]),
        step_values=tuple(jnp.zeros((capacity, *spec.shape), spec.dtype) for spec in specs[num_fetched:]),
    )


def _make_loop_output(final: _LoopState, layout: Layout, checked_names: Sequence[str], *, has_loop: bool) -> LoopOutput:
    """Return one replica's part of a loop's output, in which arrays that are split over the replicas have an axis of length 1.

    Args:
        final: state after the last step.
        layout: layout of the program's variables.
        checked_names: names of the variables whose values must remain finite.
        has_loop: whether the program is a loop, which a NaN can end; the output of a single step has no `goes_on`.
    """
    names, arrays = (*layout.written, *layout.per_replica), (*final.written, *final.per_replica)
    final_values = dict(zip(names, arrays, strict=True))
    # A variable that the program does not write keeps its value, which counts as finite.
    finite = [
        jnp.isfinite(final_values[name]).all() if name in final_values else jnp.asarray(True) for name in checked_names
    ]
    loss_bits = lax.bitcast_convert_type(final.losses, jnp.int32).astype(jnp.int64)
    return LoopOutput(
        goes_on=final.goes_on if has_loop else None,
        report=jnp.stack([final.global_steps, loss_bits]),
        finite=jnp.stack(finite) if finite else None,
        fetched=tuple(array[jnp.newaxis] for array in final.fetched),
        step_values=tuple(array[:, jnp.newaxis] for array in final.step_values),
    )


def compile_call(
    program: ReplicaProgram, layout: Layout, mesh: Mesh
) -> Callable[..., tuple[ArrayTuple, ArrayTuple, ArrayTuple]]:
    """Compile one call of a program on all devices.

    Args:
        program: function of the replica's index (int32 scalar), the batch, and arrays that all replicas get.
        layout: layout of its variables.
        mesh: the devices.

    Returns:
        A function of the arrays of the layout's variables `written`, `read` and `per_replica`, the stacks of batches [1, replicas,
        ...], and arrays that all replicas get. It returns the arrays of `written` and `per_replica`, and the program's results
        [replicas, ...].
    """

    def run(
        written: ArrayTuple,
        read: ArrayTuple,
        per_replica: ArrayTuple,
        stacks: ArrayTuple,
        shared_inputs: ArrayTuple,
    ) -> tuple[ArrayTuple, ArrayTuple, ArrayTuple]:
        """Run the program on one replica; arguments and results are one replica's parts of those that `compile_call` describes."""
        replica = lax.axis_index(AXIS).astype(jnp.int32)
        inputs = [*(stack[0, 0] for stack in stacks), *shared_inputs]
        read_values = dict(zip(layout.read, read, strict=True))
        # On its device, an array that is split over the replicas has an axis of length 1.
        per_replica = tuple(array[0] for array in per_replica)
        written, per_replica, results = _run_replica_step(
            program, layout, replica, inputs, read_values, written, per_replica
        )
        return (
            written,
            tuple(array[jnp.newaxis] for array in per_replica),
            tuple(array[jnp.newaxis] for array in results),
        )

    return _compile_on_mesh(
        run,
        mesh,
        in_specs=(_REPLICATED, _REPLICATED, _SPLIT, _STACKED, _REPLICATED),
        out_specs=(_REPLICATED, _SPLIT, _SPLIT),
        donated_indices=(0, 2),
    )


def _compile_on_mesh(
    function: Callable[..., _T],
    mesh: Mesh,
    in_specs: tuple[PartitionSpec, ...],
    out_specs: tuple[PartitionSpec | LoopOutput, ...],
    donated_indices: tuple[int, ...],
) -> Callable[..., _T]:
    """Return a function compiled for all devices of the mesh.

    Args:
        function: function of one replica's parts of the arguments that returns its parts of the results.
        mesh: the devices.
        in_specs: for each argument, its partition over the replicas.
        out_specs: for each result, its partition over the replicas.
        donated_indices: indices of the arguments whose memory the results may take.
    """
    # check_vma is off: jax's check of replicated values does not see into exported modules.
    mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    compiled: Callable[..., _T] = jax.jit(mapped, donate_argnums=donated_indices)
    return compiled


def _run_replica_step(
    program: ReplicaProgram,
    layout: Layout,
    replica: jax.Array,
    inputs: Sequence[jax.Array],
    read_values: Mapping[str, jax.Array],
    written: Sequence[jax.Array],
    per_replica: Sequence[jax.Array],
) -> tuple[ArrayTuple, ArrayTuple, list[jax.Array]]:
    """Run one step of this replica; return the new values of `layout.written` and of `layout.per_replica`, and the results.

    Args:
        program: the step, a function of the replica's index and `inputs`.
        layout: layout of the step's variables.
        replica: index of this replica (int32 scalar).
        inputs: inputs of the program after the index.
        read_values: values of `layout.read`, by name.
        written: values of `layout.written`.
        per_replica: this replica's values of `layout.per_replica`.
    """
    values = {
        **read_values,
        **dict(zip(layout.written, written, strict=True)),
        **dict(zip(layout.per_replica, per_replica, strict=True)),
    }
    results, updates = program([replica, *inputs], values)
    # Sorted, since all processes must build the same program.
    values |= updates | _take_first_replica({name: updates[name] for name in sorted(layout.diverging)})
    return tuple(values[name] for name in layout.written), tuple(values[name] for name in layout.per_replica), results


def _take_first_replica(values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the first replica's values on all replicas.

    The values of each dtype are joined into a flat array, which is summed over the replicas; all but the first add zeros.
    """
    if lax.axis_size(AXIS) == 1:
        return dict(values)
    first_values: dict[str, jax.Array] = {}
    for dtype in dict.fromkeys(value.dtype for value in values.values()):
        names = [name for name, value in values.items() if value.dtype == dtype]
        flat = jnp.concatenate([values[name].ravel() for name in names])
        summands = flat.astype(jnp.int32) if dtype.name == "bool" else flat  # psum takes numbers only.
        summands = jnp.where(lax.axis_index(AXIS) == 0, summands, jnp.zeros_like(summands))
        flat_first = lax.psum(summands, AXIS).astype(dtype)
        start = 0
        for name in names:
            size = values[name].size
            first_values[name] = flat_first[start : start + size].reshape(values[name].shape)
            start += size
    return first_values
