"""Host work of training on several devices: the engine's steps next to a step of JAX with the same number of arrays.

    python scripts/bench/devices.py [--arrays N ...] [--devices N ...] [--loop N] [--steps N] [--rounds N]

A step subtracts a tenth of a batch's mean from each of N arrays of four numbers, so that computing takes hardly any time. Three
sides run it, as calls of one step and of a loop of steps, in this process and in turn: many calls each, since in training nothing
else fills the caches.

- engine: `DeviceTrainStep` of `estimator.train` with its batches, checks and losses;
- alike: `jax.jit` of a `shard_map` that is called with the arrays, which it donates, and with the same batches; it does the same
  checks: the mean loss of the devices ends a loop if it is NaN, and the end of a loop tests all arrays;
- bare: the same without checks, with one stack of batches again and again.

The first two run twice: with the stacks that the feed's thread reads at the same time ("fed"), and with one stack for all calls
("at hand").

All wait for the end of a call, which CPU devices require, and fetch its losses. CPU time is of the main thread, which calls the
devices and computes part of such small steps itself. Prints ms a step, ratios of CPU times (medians of the rounds), and the CPU
seconds of the process that building and the first call take; the engine's include TensorFlow's tracing. Never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import PartitionSpec

from tpudata.devices.batches.feeder import Portion, StackFeed, StackIteration
from tpudata.devices.processes.device_search import find_local_devices, request_cpu_devices
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology
from tpudata.devices.spmd.mesh import AXIS, make_mesh, replicate
from tpudata.devices.spmd.variables import DeviceVariables
from tpudata.estimator import TPUEstimatorSpec
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.device_train_step import DeviceTrainStep
from tpudata.estimator.steps.train_step import LoopRequest
from tpudata.estimator.tracing.traced_model import trace_model

v1 = tf.compat.v1
_SIZE = 4
_SPEC = tf.TensorSpec([_SIZE], tf.float32)


def main() -> None:
    """Measure all sides and print a table."""
    parser = argparse.ArgumentParser(description="Measures the engine's host work next to JAX's.")
    parser.add_argument("--arrays", type=int, nargs="+", default=[60, 600, 1800])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--loop", type=int, default=100, help="steps of a loop (default: 100)")
    parser.add_argument(
        "--steps", type=int, default=100, help="calls of a round; a fifth of them of loops (default: 100)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    request_cpu_devices(max(flags.devices))
    print(
        "                            |      CPU, ms a step      |     clock, ms a step     | CPU, engine of JAX |    first call, s"
    )
    print(
        "devices arrays loop stacks  | engine    alike     bare | engine    alike     bare |    alike      bare |"
        " engine  alike  bare"
    )
    for devices in flags.devices:
        for array_count in flags.arrays:
            for loop in (1, flags.loop):
                for is_fed in (True, False):
                    _print_row(
                        devices,
                        array_count,
                        loop,
                        flags.steps if loop == 1 else flags.steps // 5,
                        flags.rounds,
                        is_fed=is_fed,
                    )


class _CallTime(NamedTuple):
    """Seconds of a call: CPU time of the main thread, and by the clock."""

    cpu: float
    clock: float


def _print_row(devices: int, array_count: int, loop: int, call_count: int, round_count: int, *, is_fed: bool) -> None:
    """Measure the sides with some devices and arrays, and print the results.

    Args:
        devices: number of devices.
        array_count: number of arrays.
        loop: number of steps in a call.
        call_count: number of calls in a round.
        round_count: number of rounds.
        is_fed: whether stacks are read meanwhile; otherwise, all calls take the first stack, as the third side always does.
    """
    builders = (
        lambda: _build_engine(devices, array_count, loop, is_fed=is_fed),
        lambda: _build_jax(devices, array_count, loop, is_alike=True, is_fed=is_fed),
        lambda: _build_jax(devices, array_count, loop, is_alike=False),
    )
    sides, first_seconds = zip(*map(_build_and_call, builders), strict=True)
    # Three calls warm each side up.
    for side in sides:
        for _ in range(3):
            side()
    times = [[_measure(side, call_count) for side in sides] for _ in range(round_count)]
    # Milliseconds of a step, and ratios of the engine's CPU time to that of the other sides.
    by_side = list(zip(*times, strict=True))
    cpu = [1e3 / loop * statistics.median(call_time.cpu for call_time in side_times) for side_times in by_side]
    clock = [1e3 / loop * statistics.median(call_time.clock for call_time in side_times) for side_times in by_side]
    alike_ratio = statistics.median(engine.cpu / alike.cpu for engine, alike, _ in times)
    bare_ratio = statistics.median(engine.cpu / bare.cpu for engine, _, bare in times)
    numbers = " | ".join(" ".join(f"{number:8.3f}" for number in row) for row in (cpu, clock))
    first = " ".join(f"{seconds:6.1f}" for seconds in first_seconds)
    stacks = "fed" if is_fed else "at hand"
    print(
        f"{devices:>7} {array_count:>6} {loop:>4} {stacks:7} | {numbers} | {alike_ratio:8.2f}  {bare_ratio:8.2f} | {first}",
        flush=True,
    )


def _build_and_call(build: Callable[[], Callable[[], Any]]) -> tuple[Callable[[], Any], float]:
    """Build a side, and call it once; return the side, and the CPU seconds of building and call."""
    begin = time.process_time()
    side = build()
    side()
    return side, time.process_time() - begin


def _measure(side: Callable[[], Any], call_count: int) -> _CallTime:
    """Return the mean CPU time of this thread, and the mean time by the clock, of `call_count` calls of a side."""
    cpu, clock = time.thread_time(), time.perf_counter()
    for _ in range(call_count):
        side()
    return _CallTime((time.thread_time() - cpu) / call_count, (time.perf_counter() - clock) / call_count)


class _RepeatedStack(StackIteration):
    """An iteration that returns the first stack of a feed again and again."""

    def __init__(self, feed: StackFeed, loop: int) -> None:
        super().__init__(feed, max_steps=None)
        self._portion = super().take(loop)
        # No other stack is read.
        self.close()

    def take(self, max_steps: int) -> Portion | None:
        """Return all steps of the stack."""
        del max_steps
        return self._portion


def _build_engine(devices: int, array_count: int, loop: int, *, is_fed: bool) -> Callable[[], Any]:
    """Return a function that runs a loop of the engine's steps.

    Args:
        devices: number of devices.
        array_count: number of variables.
        loop: number of steps in a loop.
        is_fed: whether each loop reads a new stack of batches; otherwise, all loops take the first stack.
    """

    def call_model(features: Any, labels: Any) -> TPUEstimatorSpec:
        # The step of the module's docstring as a model_fn: the loss is the mean of the batch.
        del labels
        loss = tf.distribute.get_replica_context().all_reduce("MEAN", tf.reduce_mean(features))
        changes = [
            v1.get_variable(f"array_{number}", [_SIZE], initializer=v1.zeros_initializer()).assign_sub(
                tf.fill([_SIZE], 0.1 * loss)
            )
            for number in range(array_count)
        ]
        step = v1.train.get_global_step().assign_add(1)
        return TPUEstimatorSpec("train", loss=loss, train_op=tf.group(step, *changes))

    topology = Topology(devices, find_local_devices(devices))
    traced = trace_model(call_model, "train", (_SPEC, None), seed=1, num_replicas=devices)
    mesh = make_mesh(topology.devices)
    # Variables by name, which the store adds when it makes them.
    variables: dict[str, Any] = {}
    store = VariableStore(variables, DeviceVariables(mesh, variables), topology.peers)
    step = DeviceTrainStep(traced, topology, store, is_broadcast=False)
    feed = _make_feed(mesh, devices, loop)
    iteration = feed.iterate() if is_fed else _RepeatedStack(feed, loop)
    return lambda: step.run(iteration, LoopRequest(loop, is_single_step=loop == 1))


def _make_feed(mesh: Any, devices: int, loop: int) -> StackFeed:
    """Return a feed of endless batches of ones, in stacks of a loop."""
    dataset = tf.data.Dataset.from_tensors(tf.ones([_SIZE])).repeat()
    return StackFeed(dataset, mesh, devices, loop, is_endless=True, peers=Peers())


def _build_jax(devices: int, array_count: int, loop: int, *, is_alike: bool, is_fed: bool = False) -> Callable[[], Any]:
    """Return a function that runs a loop of JAX's steps.

    Args:
        devices: number of devices.
        array_count: number of arrays that a step updates.
        loop: number of steps in a loop.
        is_alike: whether the steps do all that the engine's steps do: average the loss, stop at NaN, check the arrays.
        is_fed: whether each loop reads a new stack of batches; otherwise, all loops take the first stack.
    """
    mesh = make_mesh(find_local_devices(devices))
    everywhere, rows = PartitionSpec(), PartitionSpec(None, AXIS)

    def run_steps(arrays: Any, stack: Any, count: Any) -> Any:
        # Each device runs this: up to `count` steps, each with the device's rows of a batch of the stack.
        def run_step(carry: Any) -> Any:
            # `carry` holds what `begin` holds below, after some steps.
            step, _, arrays, losses = carry
            mean = jax.lax.pmean(stack[step].mean(), AXIS)
            arrays = [array - 0.1 * mean for array in arrays]
            # The mean is the same on all devices already, but the engine averages every model's loss.
            loss = jax.lax.pmean(mean, AXIS) if is_alike else mean
            is_finite = ~jax.numpy.isnan(loss) if is_alike else True
            return step + 1, is_finite, arrays, losses.at[step].set(loss)

        def goes_on(carry: Any) -> Any:
            step, is_finite, _, _ = carry
            return (step < count) & is_finite

        # Step, whether the last loss is a number, arrays, and the losses by step.
        begin = jax.numpy.int32(0), True, arrays, jax.numpy.zeros(loop)
        end = run_step(begin) if loop == 1 else jax.lax.while_loop(goes_on, run_step, begin)
        steps, _, arrays, losses = end
        if not is_alike or loop == 1:  # The engine checks arrays at the ends of loops.
            return arrays, (losses, steps)
        return arrays, (losses, steps, jax.numpy.stack([jax.numpy.isfinite(array).all() for array in arrays]))

    mapped = jax.shard_map(
        run_steps,
        mesh=mesh,
        in_specs=(everywhere, rows, everywhere),
        out_specs=(everywhere, everywhere),
        check_vma=False,
    )
    compiled = jax.jit(mapped, donate_argnums=0)
    iteration = _make_feed(mesh, devices, loop).iterate()
    state = [replicate(mesh, np.zeros(_SIZE, np.float32)) for _ in range(array_count)]
    count = replicate(mesh, np.int32(loop))
    stack = _take_stack(iteration, loop)

    def run() -> None:
        # The arrays are donated to the call, which returns the arrays for the next call.
        nonlocal state, stack
        if is_fed:
            stack = _take_stack(iteration, loop)
        state, results = compiled(state, stack, count)
        results[0].block_until_ready()
        # The engine fetches all results; the bare loop needs only the losses.
        jax.tree.map(np.asarray, results if is_alike else results[0])

    return run


def _take_stack(iteration: Any, loop: int) -> Any:
    (stack,) = iteration.take(loop).arrays
    return stack


if __name__ == "__main__":
    main()
