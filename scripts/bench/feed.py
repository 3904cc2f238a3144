"""Feeding of JAX devices: batches a second from as_jax and from the trainer's stacks, next to `device_put` in the loop.

    python scripts/bench/feed.py [--devices N] [--rounds N] [--step-ms MS]

All read the same batches, from memory, onto N CPU devices. The plain loop takes numpy arrays and puts them on the devices itself.
The step of the device is a sleep, in which a real one would compute: without it, the rate is that of feeding alone; with it, what
counts is how long the loop waits for its batch. Prints ratios of one run, and never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

# Rows and shape of a batch: records of 784 bytes, images of 150 kB, tokens.
_BATCHES = {
    "64 x 784 bytes": (64, (28, 28, 1), "uint8"),
    "32 x 150 kB": (32, (224, 224, 3), "uint8"),
    "128 x 512 tokens": (128, (512,), "int32"),
}
_LOOP = 100


def main() -> None:
    """Measure all ways in turn, and print a table for each kind of batch."""
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
    ways = {"device_put in the loop": _plain, "as_jax": _as_jax, "stacks of the trainer": _stacks}
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    for _ in range(flags.rounds):
        for way, begin in ways.items():
            found[way].append(_cost(begin, _dataset(name, flags.devices, begin is _stacks), flags, step))
    base = found[next(iter(ways))]
    for way, costs in found.items():
        wall, waited, cpu = (statistics.median(values) for values in zip(*costs, strict=True))
        ratio = statistics.median(theirs[0] / mine[0] for mine, theirs in zip(costs, base, strict=True))
        print(f"    {name:18} {way:24} {1 / wall:9.0f} {1e3 * waited:10.2f} {1e3 * cpu:8.2f} {ratio:6.2f}", flush=True)


def _cost(
    begin: Callable[..., Iterator[Any]], dataset: Any, flags: argparse.Namespace, step: float
) -> tuple[float, ...]:
    """Return the seconds of a step, those in which the loop waits for its batch, and the CPU seconds."""
    steps = begin(dataset, flags.devices)
    for _ in range(2 * _LOOP if step == 0 else 2):
        next(steps)
    count, waited, start, cpu = 0, 0.0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < flags.seconds or count % _LOOP:
        asked = time.perf_counter()
        next(steps)
        waited += time.perf_counter() - asked
        if step:
            time.sleep(step)
        count += 1
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    steps.close()  # type: ignore[attr-defined]  # A generator.
    return wall / count, waited / count, cpu / count


def _dataset(name: str, devices: int, is_by_replica: bool) -> Any:
    import numpy as np
    import tensorflow as tf

    rows, shape, dtype = _BATCHES[name]
    if is_by_replica:
        rows //= devices
    images = np.random.default_rng(0).integers(0, 200, (8 * rows, *shape)).astype(dtype)
    labels = np.arange(8 * rows, dtype=np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(rows, drop_remainder=True)
    return dataset.cache().repeat().prefetch(2)


def _mesh(devices: int, name: str) -> Any:
    import jax
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()[:devices]), (name,))


def _plain(dataset: Any, devices: int) -> Iterator[Any]:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(_mesh(devices, "data"), PartitionSpec("data"))
    for batch in dataset.as_numpy_iterator():
        yield jax.block_until_ready(jax.device_put(batch, sharding))


def _as_jax(dataset: Any, devices: int) -> Iterator[Any]:
    import jax

    from tpudata import as_jax

    for batch in as_jax(dataset, sharding=_mesh(devices, "data")):
        yield jax.block_until_ready(batch)


def _stacks(dataset: Any, devices: int) -> Iterator[Any]:
    """Yield once a step; on a device, a loop would take all steps of a stack without Python."""
    import jax

    from tpudata.devices.batches.feeder import StackFeed
    from tpudata.devices.processes.peers import Peers

    feed = StackFeed(dataset, _mesh(devices, "replicas"), devices, _LOOP, endless=True, peers=Peers())
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
