"""Host work of training on several devices: the engine's steps next to a step of JAX with as many arrays.

    python scripts/bench/devices.py [--arrays N ...] [--devices N ...] [--loop N] [--steps N] [--rounds N]

A step subtracts the mean of a batch from each of N arrays of four numbers, so computing takes next to nothing. Three sides run it,
as calls of one step and of a loop of steps, in this process and in turn: many calls each, as in training nothing else fills caches.

- the engine: `DeviceTrainStep` of `estimator.train` with its batches, checks and losses;
- JAX, alike: `jax.jit` of a `shard_map` that is called with the arrays, which it donates, and with the same batches; it does the
  same checks: the mean loss of the devices ends a loop if it is NaN, and the end of a loop tests all arrays;
- JAX, bare: the same without checks, with one stack of batches again and again.

The first two run twice: with the stacks that the feed's thread reads at the same time, and with one stack that is at hand.

All wait for the end of a call, as CPU devices need, and fetch its losses. CPU is that of the main thread, which calls the devices
and computes part of such small steps itself. Prints ms a step, ratios of CPU times (medians of the rounds), and the CPU seconds of
the process that building and the first call take; the engine's include TensorFlow's tracing. Never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import PartitionSpec

from tpudata.devices.batches.feeder import Portion, StackFeed, StackIteration
from tpudata.devices.processes.device_search import find_local_devices, make_cpu_devices
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
    """Measure both sides and print a table."""
    parser = argparse.ArgumentParser(description="Measures the engine's host work next to JAX's.")
    parser.add_argument("--arrays", type=int, nargs="+", default=[60, 600, 1800])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--loop", type=int, default=100, help="steps of a loop (default: 100)")
    parser.add_argument(
        "--steps", type=int, default=100, help="calls of a round; a fifth of them of loops (default: 100)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    make_cpu_devices(max(flags.devices))
    print(
        "                            |      CPU, ms a step      |     clock, ms a step     | CPU, engine of JAX |    first call, s"
    )
    print(
        "devices arrays loop stacks  | engine    alike     bare | engine    alike     bare |    alike      bare |"
        " engine  alike  bare"
    )
    for devices in flags.devices:
        for arrays in flags.arrays:
            for loop in (1, flags.loop):
                for is_fed in (True, False):
                    _print_row(
                        devices,
                        arrays,
                        loop,
                        flags.steps if loop == 1 else flags.steps // 5,
                        flags.rounds,
                        is_fed=is_fed,
                    )


def _print_row(devices: int, arrays: int, loop: int, calls: int, rounds: int, *, is_fed: bool) -> None:
    ways = (
        lambda: _engine(devices, arrays, loop, is_fed=is_fed),
        lambda: _jax(devices, arrays, loop, is_alike=True, is_fed=is_fed),
        lambda: _jax(devices, arrays, loop, is_alike=False),
    )
    sides, firsts = zip(*map(_begin, ways), strict=True)
    for side in sides:
        for _ in range(3):
            side()
    times = [[_time(side, calls) for side in sides] for _ in range(rounds)]
    cpu, clock = (
        [1e3 / loop * statistics.median(row[side][kind] for row in times) for side in range(3)] for kind in (0, 1)
    )
    ratios = [statistics.median(row[0][0] / row[side][0] for row in times) for side in (1, 2)]
    numbers = " | ".join(" ".join(f"{value:8.3f}" for value in values) for values in (cpu, clock))
    first = " ".join(f"{seconds:6.1f}" for seconds in firsts)
    stacks = "fed" if is_fed else "at hand"
    print(
        f"{devices:>7} {arrays:>6} {loop:>4} {stacks:7} | {numbers} | {ratios[0]:8.2f}  {ratios[1]:8.2f} | {first}",
        flush=True,
    )


def _begin(make: Callable[[], Callable[[], Any]]) -> tuple[Callable[[], Any], float]:
    """Return a side, and the CPU seconds of building it and of its first call."""
    begin = time.process_time()
    side = make()
    side()
    return side, time.process_time() - begin


def _time(side: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return the CPU seconds of the main thread, and the seconds by the clock, of a call."""
    cpu, clock = time.thread_time(), time.perf_counter()
    for _ in range(calls):
        side()
    return (time.thread_time() - cpu) / calls, (time.perf_counter() - clock) / calls


class _AtHand:
    """An iteration whose stack is taken again and again."""

    def __init__(self, iteration: StackIteration, loop: int) -> None:
        self.capacity = iteration.capacity
        self._portion = iteration.take(loop)
        iteration.close()

    def take(self, most: int) -> Portion | None:
        """Return the steps of the stack."""
        del most
        return self._portion


def _engine(devices: int, arrays: int, loop: int, *, is_fed: bool) -> Callable[[], Any]:
    def call_model(features: Any, labels: Any) -> TPUEstimatorSpec:
        del labels
        loss = tf.distribute.get_replica_context().all_reduce("MEAN", tf.reduce_mean(features))
        changes = [
            v1.get_variable(f"array_{number}", [_SIZE], initializer=v1.zeros_initializer()).assign_sub(
                tf.fill([_SIZE], 0.1 * loss)
            )
            for number in range(arrays)
        ]
        step = v1.train.get_global_step().assign_add(1)
        return TPUEstimatorSpec("train", loss=loss, train_op=tf.group(step, *changes))

    topology = Topology(devices, find_local_devices(devices))
    traced = trace_model(call_model, "train", (_SPEC, None), 1, None, devices)
    mesh = make_mesh(topology.devices)
    variables: dict[str, Any] = {}
    store = VariableStore(variables, DeviceVariables(mesh, variables), topology.peers)
    step = DeviceTrainStep(traced, topology, store, broadcast=False)
    iteration: Any = _feed(mesh, devices, loop).iterate()
    if not is_fed:
        iteration = _AtHand(iteration, loop)
    return lambda: step.run(iteration, LoopRequest(loop, is_single_step=loop == 1))


def _feed(mesh: Any, devices: int, loop: int) -> StackFeed:
    dataset = tf.data.Dataset.from_tensors(tf.ones([_SIZE])).repeat()
    return StackFeed(dataset, mesh, devices, loop, endless=True, peers=Peers())


def _jax(devices: int, arrays: int, loop: int, *, is_alike: bool, is_fed: bool = False) -> Callable[[], Any]:
    mesh = make_mesh(find_local_devices(devices))
    everywhere, rows = PartitionSpec(), PartitionSpec(None, AXIS)

    def steps(values: Any, stack: Any, count: Any) -> Any:
        def body(carry: Any) -> Any:
            number, _, values, losses = carry
            mean = jax.lax.pmean(stack[number].mean(), AXIS)
            values = [value - 0.1 * mean for value in values]
            loss = jax.lax.pmean(mean, AXIS) if is_alike else mean
            goes_on = ~jax.numpy.isnan(loss) if is_alike else True
            return number + 1, goes_on, values, losses.at[number].set(loss)

        begin = jax.numpy.int32(0), True, values, jax.numpy.zeros(loop)
        end = body(begin) if loop == 1 else jax.lax.while_loop(lambda carry: (carry[0] < count) & carry[1], body, begin)
        done, _, values, losses = end
        if not is_alike or loop == 1:  # The engine checks arrays at the ends of loops.
            return values, (losses, done)
        return values, (losses, done, jax.numpy.stack([jax.numpy.isfinite(value).all() for value in values]))

    mapped = jax.shard_map(
        steps, mesh=mesh, in_specs=(everywhere, rows, everywhere), out_specs=(everywhere, everywhere), check_vma=False
    )
    compiled = jax.jit(mapped, donate_argnums=0)
    iteration = _feed(mesh, devices, loop).iterate()
    state = [replicate(mesh, np.zeros(_SIZE, np.float32)) for _ in range(arrays)]
    count = replicate(mesh, np.int32(loop))
    stack = _stack(iteration, loop)

    def run() -> None:
        nonlocal state, stack
        if is_fed:
            stack = _stack(iteration, loop)
        state, results = compiled(state, stack, count)
        results[0].block_until_ready()
        jax.tree.map(np.asarray, results if is_alike else results[0])

    return run


def _stack(iteration: Any, loop: int) -> Any:
    (stack,) = iteration.take(loop).arrays
    return stack


if __name__ == "__main__":
    main()
