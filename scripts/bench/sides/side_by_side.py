"""Pipelines that do the same work, each in a separate process, measured in turn.

In one process, the work that one pipeline does in advance would cost the others. A loop in a graph takes the batches, as in
training: in Python, the objects of a batch of 1,024 records of 842 bytes take 0.1 ms if it is (features, labels), half of that if
it is one tensor, and reading takes 1.2 ms.
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
        batch_count: number of batches in a round.
        warm_up: number of batches before the first round. A shuffle's window gets its memory from the system when it is first
            filled, and reuses it from then on.
    """

    build: Callable[[], Any]
    batch_count: int
    warm_up: int = 5


class _Cost(NamedTuple):
    """Seconds of a round or of a record: CPU time, and by the clock."""

    cpu: float
    clock: float


def print_table(sides: dict[str, Side], batch_size: int, round_count: int) -> None:
    """Measure sides in turn; print records per CPU second and per second, and the first side's CPU time relative to each side's."""
    context = multiprocessing.get_context("spawn")
    workers: dict[str, tuple[Any, Connection]] = {}
    for name, side in sides.items():
        connection, worker_connection = context.Pipe()
        process = context.Process(target=_serve, args=(worker_connection, side), daemon=True)
        process.start()
        workers[name] = process, connection
        # The process sends something once its warm-up is done.
        connection.recv()
    costs: dict[str, list[_Cost]] = {name: [] for name in sides}
    for _ in range(round_count):
        for name, (_, connection) in workers.items():
            # Any object requests a round.
            connection.send(True)
            cost: _Cost = connection.recv()
            record_count = sides[name].batch_count * batch_size
            costs[name].append(_Cost(cost.cpu / record_count, cost.clock / record_count))
    for process, _ in workers.values():
        process.kill()
        process.join()
    base_costs = costs[next(iter(costs))]
    print(f"    {'':34} {'per CPU s':>10} {'per s':>8} {'ratio':>7}")
    for name, side_costs in costs.items():
        cpu, clock = (statistics.median(seconds) for seconds in zip(*side_costs, strict=True))
        ratio = statistics.median(base.cpu / cost.cpu for cost, base in zip(side_costs, base_costs, strict=True))
        print(f"    {name:34} {1e-3 / cpu:10.0f} {1e-3 / clock:8.0f} {ratio:7.2f}", flush=True)


def _serve(connection: Connection, side: Side) -> None:
    """Warm a side up and confirm that; then answer each message with the _Cost of a round."""
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
        begin_cpu, _ = _wait_until_idle()
        begin = time.perf_counter()
        take(tf.constant(side.batch_count))
        end_cpu, end = _wait_until_idle()
        connection.send(_Cost(end_cpu - begin_cpu, end - begin))


def _wait_until_idle() -> tuple[float, float]:
    """Wait until this process is idle; return its CPU time, and the time by the clock at which it became idle.

    Pipelines work in advance, so a round ends when as much is prepared as at its beginning.
    """
    cpu, clock = time.process_time(), time.perf_counter()
    while time.perf_counter() - clock < QUIET:
        time.sleep(QUIET / 20)
        current_cpu = time.process_time()
        # A tenth of a core is more than idle threads take.
        if current_cpu - cpu > QUIET / 10:
            cpu, clock = current_cpu, time.perf_counter()
    return cpu, clock
