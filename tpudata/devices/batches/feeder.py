"""Stacks of batches on the devices: the elements of the replicas for some steps, read while the previous loop runs.

A stack has for each tensor of an element a global array [capacity, replicas, ...], sharded over the replicas. While a loop takes
steps of one stack, the next is on the devices, and the one after it is read on the host.
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

# Two stacks are on a device: 128 MiB of the 16 GB of the smallest TPU. Sending one takes 10 ms, far longer than starting a loop.
STACK_BYTES = 64 * 2**20
ENDS_WITHIN_STEP = (
    "evaluate: the data ends within a step, in which some replicas get no batch. Provide features['weights'] (0 for "
    "padding), as tpudata.make_input_fn does, or whole steps."
)


class ShortData(enum.Enum):
    """Rule for processes whose data ends before that of others.

    Attributes:
        STOP: all end together with the first, as in training.
        FILL: they get zeros, whose weights are 0, until all have ended.
        REJECT: it is an error, as a metric would count the zeros.
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
        element_spec: structure of one replica's element.
        capacity: number of steps in a stack.
        layout: layout of the stacks on the devices.

    Args:
        dataset: `tf.data.Dataset` of the elements of this process's replicas in turn: numbers of static shapes.
        mesh: `jax.sharding.Mesh` of the devices in the order of the replicas, with one axis.
        local_replicas: number of this process's replicas.
        capacity: largest number of steps in a stack.
        endless: whether the data of all processes repeats without end; with several processes, an end is then an error.
        peers: the processes that train together.
        short_data: rule for processes whose data ends first.
        stack_bytes: largest size of a stack on one device, if it has more than one step.

    Raises:
        ValueError: the mesh has a different number of this process's devices.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        mesh: Mesh,
        local_replicas: int,
        capacity: int,
        *,
        endless: bool,
        peers: Peers,
        short_data: ShortData = ShortData.STOP,
        stack_bytes: int = STACK_BYTES,
    ) -> None:
        self.element_spec = dataset.element_spec
        specs = [spec for spec in tf.nest.flatten(self.element_spec) if isinstance(spec, tf.TensorSpec)]
        size = sum(spec.dtype.size * math.prod(spec.shape) for spec in specs)
        self.capacity = max(1, min(capacity, stack_bytes // max(size, 1)))
        self.endless = endless
        self.short_data = short_data
        self.peers = peers
        self.layout = StackLayout(specs, mesh, local_replicas, self.capacity)
        self._reader = StepReader(dataset, local_replicas, self.capacity, endless=endless)

    def iterate(self, steps: int | None = None) -> StackIteration:
        """Begin a pass over the data, which a thread reads ahead.

        Args:
            steps: largest number of steps that the pass reads; None for all. The caller gets no error and no wait from data after
                them.
        """
        return StackIteration(self, steps)

    def prefetch(self, steps: int | None) -> Prefetcher[Steps, Portion]:
        """Start the thread that reads the stacks of a pass and places them on the devices."""
        open_pass = self._reader.open_pass()
        return Prefetcher(
            lambda: self._reader.read(open_pass, steps),
            lambda steps_read: Portion(self.layout.place(steps_read.columns), 0, steps_read.count),
            ahead=1,
            name="tpudata-stacks",
            cancel=open_pass.end,
        )


class StackIteration:
    """One pass over the data of a StackFeed."""

    def __init__(self, feed: StackFeed, steps: int | None) -> None:
        self._feed = feed
        self._remaining_steps = steps
        self._stacks = feed.prefetch(steps)
        self._stack: Portion | None = None
        self._zeros: list[jax.Array] | None = None
        self._failure: Exception | None = None
        self._is_over = False

    def take(self, max_steps: int) -> Portion | None:
        """Return the next steps, up to `max_steps` that lie in one stack; None at the end of the data, the same in all processes.

        Raises:
            tf.errors.InvalidArgumentError: the data of some processes ends before that of others, and has no weights.
            ClusterError: the data of another process failed.
            Exception: the error of this process's data, unchanged.
        """
        if self._stack is None:
            self._stack = self._next_stack()
        stack = self._stack
        if stack is None:
            return None
        count = min(max_steps, stack.count)
        remainder = Portion(stack.arrays, stack.start + count, stack.count - count)
        # Free the devices' memory of a stack without steps.
        self._stack = remainder if remainder.count else None
        return Portion(stack.arrays, stack.start, count)

    @property
    def capacity(self) -> int:
        """Largest number of steps in a stack."""
        capacity: int = self._feed.capacity
        return capacity

    def next(self) -> Tensors:
        """Return the next step's element, whose tensors are stacks [1, replicas, ...]; None at the end.

        The feed must have a capacity of 1. The errors are those of `take`.
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

    def _next_stack(self) -> Portion | None:
        """Return the next stack, with as many steps as all processes agree on; None at the end."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._is_over or self._remaining_steps == 0:
            return None
        requested = (
            self._feed.capacity if self._remaining_steps is None else min(self._feed.capacity, self._remaining_steps)
        )
        stack, error = self._read(requested)
        own_count = 0 if stack is None else stack.count
        min_count, max_count, failed = own_count, own_count, error is not None
        if not self._feed.endless:
            min_count, minus_max, minus_failed = self._feed.peers.min_numbers([own_count, -own_count, -int(failed)])
            max_count, failed = -minus_max, bool(minus_failed)
        count = max_count if self._feed.short_data is ShortData.FILL and not failed else min_count
        self._is_over = count < requested
        if self._remaining_steps is not None:
            self._remaining_steps -= count
        if failed:
            self._failure = error or ClusterError(
                "input_fn: another process cannot read its data (got an error there, expected batches). See its log."
            )
        elif self._feed.short_data is ShortData.REJECT and min_count != max_count:
            self._failure = tf.errors.InvalidArgumentError(None, None, ENDS_WITHIN_STEP)
        if not count:
            return None if self._failure is None else self._next_stack()
        return Portion(self._make_zeros() if stack is None else stack.arrays, 0, count)

    def _read(self, requested: int) -> tuple[Portion | None, Exception | None]:
        """Return this process's next stack, and the error that ended its data if it has fewer than `requested` steps."""
        stack: Portion | None = None
        try:
            stack = next(self._stacks, None)
            if stack is not None and stack.count < requested:
                next(self._stacks, None)
        except tf.errors.OutOfRangeError as error:
            # For example repeat() of no data. One process ends here; several report it, as others would wait for the next step.
            return stack, None if self._feed.peers.count == 1 else error
        except Exception as error:
            return stack, error
        return stack, None

    def _make_zeros(self) -> list[jax.Array]:
        """Return the arrays of a stack of zeros, which are kept for further calls."""
        if self._zeros is None:
            self._zeros = self._feed.layout.place(None)
        return self._zeros
