"""Host work of training on several devices: the engine's steps next to a step of JAX with as many arrays.

    python scripts/bench/devices.py [--arrays N ...] [--devices N ...] [--loop N] [--steps N] [--rounds N]

A step subtracts the mean of a batch from each of N arrays of four numbers, so computing takes next to nothing. On the one side,
`DeviceTrainStep` of `estimator.train` runs it, with its batches, checks and losses; on the other, `jax.jit` of a `shard_map` that
is called with the arrays and a stack of batches, and donates the arrays. Both wait for each call, as CPU devices need. Measured in
this process, in turn: calls of one step, and of a loop of steps. Times are CPU times of the main thread, which calls the devices
and computes most of such small steps itself. Prints ms a step and ratios, and never fails on time.
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

from tpudata.devices.batches.feeder import StackFeed
from tpudata.devices.processes.device_search import local_devices, make_cpu_devices
from tpudata.devices.processes.topology import Topology
from tpudata.devices.spmd.mesh import AXIS, make_mesh, replicated
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
    parser.add_argument("--steps", type=int, default=100, help="single steps of a round (default: 100)")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    make_cpu_devices(max(flags.devices))
    print(f"{'devices':>7} {'arrays':>6} {'loop':>5} {'engine, ms a step':>18} {'JAX':>8} {'ratio':>6} {'range':>14}")
    for devices in flags.devices:
        for arrays in flags.arrays:
            for loop in (1, flags.loop):
                _print_row(devices, arrays, loop, flags.steps if loop == 1 else 3, flags.rounds)


def _print_row(devices: int, arrays: int, loop: int, calls: int, rounds: int) -> None:
    sides = _engine(devices, arrays, loop), _jax(devices, arrays, loop)
    for side in sides:
        for _ in range(3):
            side()
    times = [[_time(side, calls) / loop * 1e3 for side in sides] for _ in range(rounds)]
    ours, theirs = (statistics.median(values) for values in zip(*times, strict=True))
    ratios = sorted(mine / other for mine, other in times)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(
        f"{devices:>7} {arrays:>6} {loop:>5} {ours:>18.3f} {theirs:>8.3f} {statistics.median(ratios):>6.2f} {spread:>14}",
        flush=True,
    )


def _time(side: Callable[[], Any], calls: int) -> float:
    begin = time.thread_time()
    for _ in range(calls):
        side()
    return (time.thread_time() - begin) / calls


def _engine(devices: int, arrays: int, loop: int) -> Callable[[], Any]:
    def call_model(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        del labels
        loss = tf.distribute.get_replica_context().all_reduce("MEAN", tf.reduce_mean(features))
        changes = [
            v1.get_variable(f"array_{number}", [_SIZE], initializer=v1.zeros_initializer()).assign_sub(
                tf.fill([_SIZE], 0.1 * loss)
            )
            for number in range(arrays)
        ]
        step = v1.train.get_global_step().assign_add(1)
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(step, *changes))

    topology = Topology(devices, local_devices(devices))
    traced = trace_model(call_model, "train", (_SPEC, None), 1, None, devices)
    mesh = make_mesh(topology.devices)
    variables: dict[str, Any] = {}
    store = VariableStore(variables, DeviceVariables(mesh, variables), topology.peers)
    step = DeviceTrainStep(traced, topology, store, broadcast=False)
    dataset = tf.data.Dataset.from_tensors(tf.ones([_SIZE])).repeat()
    feed = StackFeed(dataset, mesh, devices, loop, endless=True, peers=topology.peers)
    iteration = feed.iterate()
    return lambda: step.run(iteration, LoopRequest(loop, is_step=loop == 1))


def _jax(devices: int, arrays: int, loop: int) -> Callable[[], Any]:
    mesh = make_mesh(local_devices(devices))
    everywhere, rows = PartitionSpec(), PartitionSpec(None, AXIS)

    def steps(values: Any, stack: Any, count: Any) -> Any:
        def body(number: Any, carry: Any) -> Any:
            values, losses = carry
            loss = jax.lax.pmean(stack[number].mean(), AXIS)
            return [value - 0.1 * loss for value in values], losses.at[number].set(loss)

        return jax.lax.fori_loop(0, count, body, (values, jax.numpy.zeros(loop)))

    mapped = jax.shard_map(
        steps, mesh=mesh, in_specs=(everywhere, rows, everywhere), out_specs=(everywhere, everywhere), check_vma=False
    )
    compiled = jax.jit(mapped, donate_argnums=0)
    sharding = jax.sharding.NamedSharding(mesh, rows)
    stack = jax.device_put(np.ones([loop, devices, _SIZE], np.float32), sharding)
    state = [replicated(mesh, np.zeros(_SIZE, np.float32)) for _ in range(arrays)]

    def run() -> None:
        nonlocal state
        state, losses = jax.block_until_ready(compiled(state, stack, np.int32(loop)))
        np.asarray(losses)

    return run


if __name__ == "__main__":
    main()
