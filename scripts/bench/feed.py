"""Feeding of JAX devices: batches a second from as_jax and from the trainer's stacks, next to `device_put` in the loop.

    python scripts/bench/feed.py [--devices N] [--rounds N] [--step-ms MS]

All put the same batches from memory onto N CPU devices. The plain loop takes numpy arrays and puts them on the devices itself. A
step of the device is a sleep, in which a real one would compute: without it, the rate is that of feeding alone; with it, the time
that the loop waits for its batch matters. Prints ratios of one run, and never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Rows of a batch, and shape and dtype of a row: records of 784 bytes, images of 150 kB, tokens.
_BATCHES = {
    "64 x 784 bytes": (64, (28, 28, 1), "uint8"),
    "32 x 150 kB": (32, (224, 224, 3), "uint8"),
    "128 x 512 tokens": (128, (512,), "int32"),
}
# Steps of a stack, as in a loop of training.
_LOOP = 100


class _Cost(NamedTuple):
    """Seconds of a step: by the clock, of waiting for the step's batch, and of CPU time."""

    clock: float
    waiting: float
    cpu: float


def main() -> None:
    """Measure all ways to feed in turn, and print a table for each duration of a step."""
    parser = argparse.ArgumentParser(description="Measures feeding of JAX devices.")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=10.0, help="time of the device's step in the second half")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a round")
    flags = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(flags.devices)
    for step in (0.0, flags.step_ms):
        print(f"\n    {flags.devices} devices, a step of {step:g} ms")
        print(f"    {'':18} {'':24} {'steps/s':>9} {'ms waited':>10} {'CPU ms':>8} {'ratio':>6}")
        for name in _BATCHES:
            _measure(name, flags, step / 1e3)


def _measure(name: str, flags: argparse.Namespace, step: float) -> None:
    """Measure the ways to feed batches, and print a line for each.

    Args:
        name: name of the batches in `_BATCHES`.
        flags: the command's flags.
        step: seconds for which each step sleeps; 0 for none.
    """
    ways = {"device_put in the loop": _put_in_loop, "as_jax": _use_as_jax, "stacks of the trainer": _take_stacks}
    costs: dict[str, list[_Cost]] = {way: [] for way in ways}
    for _ in range(flags.rounds):
        for way, feed in ways.items():
            dataset = _make_dataset(name, flags.devices, is_for_one_device=feed is _take_stacks)
            costs[way].append(_measure_cost(feed, dataset, flags, step))
    base = costs[next(iter(ways))]
    for way, way_costs in costs.items():
        clock, waiting, cpu = (statistics.median(seconds) for seconds in zip(*way_costs, strict=True))
        ratio = statistics.median(plain.clock / cost.clock for cost, plain in zip(way_costs, base, strict=True))
        print(
            f"    {name:18} {way:24} {1 / clock:9.0f} {1e3 * waiting:10.2f} {1e3 * cpu:8.2f} {ratio:6.2f}", flush=True
        )


def _measure_cost(feed: Callable[..., Iterator[Any]], dataset: Any, flags: argparse.Namespace, step: float) -> _Cost:
    """Return the cost of a step whose batch `feed` takes from a dataset; each step then sleeps for `step` seconds, if any."""
    steps = feed(dataset, flags.devices)
    # Buffers are full after two stacks; with sleeping steps they fill meanwhile.
    for _ in range(2 * _LOOP if step == 0 else 2):
        next(steps)
    count, waiting, begin, cpu = 0, 0.0, time.perf_counter(), time.process_time()
    # Whole stacks, since the first step of a stack takes all of the stack's time.
    while time.perf_counter() - begin < flags.seconds or count % _LOOP:
        request_time = time.perf_counter()
        next(steps)
        waiting += time.perf_counter() - request_time
        if step:
            time.sleep(step)
        count += 1
    clock, cpu = time.perf_counter() - begin, time.process_time() - cpu
    steps.close()  # type: ignore[attr-defined]  # A generator.
    return _Cost(clock / count, waiting / count, cpu / count)


def _make_dataset(name: str, devices: int, *, is_for_one_device: bool) -> Any:
    """Return an endless dataset of 8 batches in memory, each for all devices or for one of them.

    `name` is the name of the batches in `_BATCHES`.
    """
    import numpy as np
    import tensorflow as tf

    row_count, shape, dtype = _BATCHES[name]
    if is_for_one_device:
        row_count //= devices
    images = np.random.default_rng(0).integers(0, 200, (8 * row_count, *shape)).astype(dtype)
    labels = np.arange(8 * row_count, dtype=np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(row_count, drop_remainder=True)
    return dataset.cache().repeat().prefetch(2)


def _make_mesh(devices: int, axis: str) -> Any:
    """Return JAX's mesh of the first devices, with one axis."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()[:devices]), (axis,))


def _put_in_loop(dataset: Any, devices: int) -> Iterator[Any]:
    """Yield the batches of a dataset on devices, put there by `device_put`."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(_make_mesh(devices, "data"), PartitionSpec("data"))
    for batch in dataset.as_numpy_iterator():
        yield jax.block_until_ready(jax.device_put(batch, sharding))


def _use_as_jax(dataset: Any, devices: int) -> Iterator[Any]:
    """Yield the batches of a dataset on devices, from as_jax."""
    import jax

    from tpudata import as_jax

    for batch in as_jax(dataset, sharding=_make_mesh(devices, "data")):
        yield jax.block_until_ready(batch)


def _take_stacks(dataset: Any, devices: int) -> Iterator[Any]:
    """Yield the trainer's stacks of batches on devices, each as often as it has steps.

    A batch of the dataset is for one device: a step takes one for each device. In training, one call takes all steps of a stack.
    """
    import jax

    from tpudata.devices.batches.feeder import StackFeed
    from tpudata.devices.processes.peers import Peers

    feed = StackFeed(dataset, _make_mesh(devices, "replicas"), devices, _LOOP, is_endless=True, peers=Peers())
    iteration = feed.iterate()
    try:
        while (portion := iteration.take(_LOOP)) is not None:
            jax.block_until_ready(portion.arrays)
            for _ in range(portion.count):
                yield portion
    finally:
        iteration.close()


if __name__ == "__main__":
    main()
