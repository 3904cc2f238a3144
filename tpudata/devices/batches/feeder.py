"""Stacks of batches on the devices: the replicas' elements of several steps, read while the previous loop runs.

A stack holds a global array [capacity, replicas, ...] for each tensor of an element, sharded over the replicas. While a loop takes
steps of one stack, the next stack is on the devices, and the stack after that is read on the host.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

import tensorflow as tf

from tpudata.devices.batches.prefetcher import Prefetcher
from tpudata.devices.batches.stack_layout import StackLayout
from tpudata.devices.batches.step_reader import StepReader, Steps
from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.peers import Peers
from tpudata.tensor_types import Tensors

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

# A device holds two stacks: 128 MiB of the 16 GB of the smallest TPU. Sending a stack takes 10 ms, more than starting a loop.
STACK_BYTES = 64 * 2**20
ENDS_WITHIN_STEP = (
    "evaluate: the data ends within a step, in which some replicas get no batch. Provide features['weights'] (0 for "
    "padding), as tpudata.make_input_fn does, or whole steps."
)


class ShortData(enum.Enum):
    """Rule for processes whose data ends before the data of others.

    Attributes:
        STOP: all processes end with the first, as in training.
        FILL: a process without further data gets zeros, whose weights are 0, until the data of all has ended.
        REJECT: it is an error if the data of some processes ends first, since a metric would count the zeros.
    """

    STOP = enum.auto()
    FILL = enum.auto()
    REJECT = enum.auto()


@dataclasses.dataclass(frozen=True)
class Portion:
    """Consecutive steps that lie in one stack.

    Attributes:
        arrays: the stack's global arrays [capacity, replicas, ...], in the order of `tf.nest.flatten` without None.
        start: index of the first step in the stack.
        count: number of steps.
    """

    arrays: list[jax.Array]
    start: int
    count: int


class StackFeed:
    """The data of a run on several devices.

    Attributes:
        element_spec: specs of one replica's element.
        capacity: number of steps in a stack.
        layout: layout of the stacks on the devices.
        is_endless: whether the data of all processes repeats without end.
        peers: the processes that train together.
        short_data: rule for processes whose data ends before the data of others.

    Args:
        dataset: `tf.data.Dataset` of the elements of this process's replicas in turn: numbers of static shapes.
        mesh: `jax.sharding.Mesh` of the devices in the order of the replicas, with one axis.
        num_local_replicas: number of this process's replicas.
        capacity: maximum number of steps in a stack; a stack has fewer if they would exceed `stack_bytes`.
        is_endless: whether the data of all processes repeats without end; with several processes, an end is then an error.
        peers: the processes that train together.
        short_data: rule for processes whose data ends before the data of others.
        stack_bytes: maximum bytes of a stack on one device; a stack of a single step may exceed it.

    Raises:
        ValueError: the mesh has a different number of this process's devices.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        mesh: Mesh,
        num_local_replicas: int,
        capacity: int,
        *,
        is_endless: bool,
        peers: Peers,
        short_data: ShortData = ShortData.STOP,
        stack_bytes: int = STACK_BYTES,
    ) -> None:
        self.element_spec = dataset.element_spec
        specs = [spec for spec in tf.nest.flatten(self.element_spec) if isinstance(spec, tf.TensorSpec)]
        # Bytes of a step on one device, which gets one element.
        step_bytes = sum(spec.dtype.size * math.prod(spec.shape) for spec in specs)
        self.capacity: int = max(1, min(capacity, stack_bytes // max(step_bytes, 1)))
        self.is_endless = is_endless
        self.short_data = short_data
        self.peers = peers
        self.layout = StackLayout(specs, mesh, num_local_replicas, self.capacity)
        self._reader = StepReader(dataset, num_local_replicas, self.capacity, is_endless=is_endless)

    def iterate(self, max_steps: int | None = None) -> StackIteration:
        """Return a new pass over the data; a thread starts to read it ahead.

        Args:
            max_steps: maximum number of steps that the pass reads; None for all. Later data causes neither an error nor a wait.
        """
        return StackIteration(self, max_steps)

    def prefetch(self, max_steps: int | None) -> Prefetcher[Steps, Portion]:
        """Start a thread that reads the stacks of a pass, of at most `max_steps` steps, and places them on the devices."""
        current_pass = self._reader.open_pass()
        return Prefetcher(
            lambda: self._reader.read(current_pass, max_steps),
            lambda steps: Portion(self.layout.place(steps.columns), start=0, count=steps.count),
            ahead=1,
            name="tpudata-stacks",
            cancel=current_pass.end,
        )


class StackIteration:
    """One pass over the data of a StackFeed.

    Args:
        feed: the data.
        max_steps: maximum number of steps that the pass reads; None for all.
    """

    def __init__(self, feed: StackFeed, max_steps: int | None) -> None:
        self._feed = feed
        self._num_remaining_steps = max_steps
        self._stacks = feed.prefetch(max_steps)
        self._stack: Portion | None = None
        self._zeros: list[jax.Array] | None = None
        self._failure: Exception | None = None  # Raised after the steps of the current stack.
        self._is_over = False

    def take(self, max_steps: int) -> Portion | None:
        """Return the next steps, up to `max_steps` that lie in one stack; None at the end of the data.

        All processes get the same number of steps if they pass the same `max_steps`.

        Raises:
            tf.errors.InvalidArgumentError: with `ShortData.REJECT`, the data of some processes ends before the data of others.
            ClusterError: the data of another process failed, or another process ended.
            Exception: the error of this process's data, unchanged.
        """
        if self._stack is None:
            self._stack = self._read_next_stack()
        stack = self._stack
        if stack is None:
            return None
        count = min(max_steps, stack.count)
        remainder = Portion(stack.arrays, stack.start + count, stack.count - count)
        # Without remaining steps, the stack is dropped, which frees its memory on the devices.
        self._stack = remainder if remainder.count else None
        return Portion(stack.arrays, stack.start, count)

    @property
    def capacity(self) -> int:
        """Maximum number of steps in a stack."""
        return self._feed.capacity

    def next(self) -> Tensors:
        """Return the next step's element, in which each tensor is a stack [1, replicas, ...]; None at the end.

        The feed must have a capacity of 1. Raises what `take` raises.
        """
        portion = self.take(1)
        if portion is None:
            return None
        arrays = iter(portion.arrays)
        spec = self._feed.element_spec
        flat = [None if leaf_spec is None else next(arrays) for leaf_spec in tf.nest.flatten(spec)]
        return tf.nest.pack_sequence_as(spec, flat)

    def close(self) -> None:
        """End the thread that reads; safe at any time, and more than once."""
        self._is_over = True
        self._stack = self._zeros = None
        self._stacks.close()

    def _read_next_stack(self) -> Portion | None:
        """Return the next stack, with as many steps as all processes agree on; None at the end.

        If the data fails, the call after the last common step raises the error.
        """
        self._raise_failure()
        if self._is_over or self._num_remaining_steps == 0:
            return None
        num_requested = (
            self._feed.capacity
            if self._num_remaining_steps is None
            else min(self._feed.capacity, self._num_remaining_steps)
        )
        stack, error = self._read(num_requested)
        count, self._failure = self._agree(0 if stack is None else stack.count, error)
        # Only the end of the data, or an error, makes a stack shorter.
        self._is_over = count < num_requested
        if self._num_remaining_steps is not None:
            self._num_remaining_steps -= count
        if count:
            # With `ShortData.FILL`, other processes may have more steps than this one: zeros follow its last step, and there is no
            # stack if its data has already ended.
            return Portion(self._make_zeros() if stack is None else stack.arrays, start=0, count=count)
        self._raise_failure()
        return None

    def _raise_failure(self) -> None:
        """Raise the error that ended the data, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _agree(self, local_count: int, error: Exception | None) -> tuple[int, Exception | None]:
        """Return the number of steps that all processes take from this stack, and the error to raise after them, if any.

        Args:
            local_count: number of steps in this process's stack.
            error: the error that ended this process's data, if any.
        """
        has_failed = error is not None
        min_count = max_count = local_count
        if not self._feed.is_endless:
            # Endless data needs no exchange, and one is enough for other data: a maximum is the negated minimum of negated numbers.
            minima = self._feed.peers.min_numbers([local_count, -local_count, -int(has_failed)])
            min_count, max_count, has_failed = minima[0], -minima[1], minima[2] < 0
        if has_failed:
            return min_count, error or ClusterError(
                "input_fn: another process cannot read its data (got an error there, expected batches). See its log."
            )
        if self._feed.short_data is ShortData.REJECT and min_count != max_count:
            return min_count, tf.errors.InvalidArgumentError(None, None, ENDS_WITHIN_STEP)
        count = max_count if self._feed.short_data is ShortData.FILL else min_count
        return count, None

    def _read(self, num_requested: int) -> tuple[Portion | None, Exception | None]:
        """Return this process's next stack or None, and the error that ended the data before `num_requested` steps, if any."""
        stack: Portion | None = None
        try:
            stack = next(self._stacks, None)
            if stack is not None and stack.count < num_requested:
                # A short stack is the last: the next call returns None at the end of the data, or raises the error that ended it.
                next(self._stacks, None)
        except tf.errors.OutOfRangeError as error:
            # For example `repeat()` of no data. This error just ends the data of a single process; with several processes, the
            # others would wait for the steps of this one.
            failure = None if self._feed.peers.count == 1 else error
            return stack, failure
        except Exception as error:
            return stack, error
        return stack, None

    def _make_zeros(self) -> list[jax.Array]:
        """Return the arrays of a stack of zeros, made by the first call."""
        if self._zeros is None:
            self._zeros = self._feed.layout.place(None)
        return self._zeros
