"""Pipelines that do the same, each in a separate process, measured in turn.

In one process they would share its processor's caches and its memory: what one pipeline has in advance costs the others. Batches
are taken by a loop in a graph, as in training: in Python, the objects of a batch of 1,024 records of 842 bytes take 0.1 ms if it is
(features, labels), half of that if it is one tensor, and reading takes 1.2 ms.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

# Seconds without work after which a pipeline is idle.
QUIET = 0.2


class Side(NamedTuple):
    """A pipeline to measure.

    Attributes:
        build: function, which is pickled, that makes the `tf.data.Dataset`; a finite one is repeated.
        batches: number of batches in a round.
        warm_up: number of batches before the first round. A shuffle's window gets its memory from the system when it is first
            filled, and reuses it from then on.
    """

    build: Callable[[], Any]
    batches: int
    warm_up: int = 5


def table(sides: dict[str, Side], batch_size: int, rounds: int) -> None:
    """Measures in turn, and prints records per CPU second and per second, and the ratio of the former to the first line's."""
    context = multiprocessing.get_context("spawn")
    started: dict[str, tuple[Any, Connection]] = {}
    for name, side in sides.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, side), daemon=True)
        process.start()
        started[name] = process, ours
        ours.recv()
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (_, connection) in started.items():
            connection.send(True)
            cpu, wall = connection.recv()
            records = sides[name].batches * batch_size
            costs[name].append((cpu / records, wall / records))
    for process, _ in started.values():
        process.kill()
        process.join()
    base = costs[next(iter(costs))]
    print(f"    {'':34} {'per CPU s':>10} {'per s':>8} {'ratio':>7}")
    for name, found in costs.items():
        cpu, wall = (statistics.median(values) for values in zip(*found, strict=True))
        ratio = statistics.median(theirs[0] / mine[0] for mine, theirs in zip(found, base, strict=True))
        print(f"    {name:34} {1e-3 / cpu:10.0f} {1e-3 / wall:8.0f} {ratio:7.2f}", flush=True)


def _serve(connection: Connection, side: Side) -> None:
    import tensorflow as tf

    dataset = side.build()
    batches = iter(dataset if dataset.cardinality() == tf.data.INFINITE_CARDINALITY else dataset.repeat())

    @tf.function  # type: ignore[untyped-decorator]
    def take(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            batches.get_next()

    take(tf.constant(side.warm_up))
    connection.send(True)
    while connection.recv():
        cpu, _ = _settled()
        wall = time.perf_counter()
        take(tf.constant(side.batches))
        cpu_after, wall_after = _settled()
        connection.send((cpu_after - cpu, wall_after - wall))


def _settled() -> tuple[float, float]:
    """Wait until this process is idle; return its CPU time and when it became idle.

    Pipelines work in advance, so a round ends when as much is prepared as at its beginning.
    """
    cpu, wall = time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < QUIET:
        time.sleep(QUIET / 20)
        now = time.process_time()
        if now - cpu > QUIET / 10:
            cpu, wall = now, time.perf_counter()
    return cpu, wall
