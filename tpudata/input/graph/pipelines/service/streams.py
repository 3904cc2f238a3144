"""Batches that the workers of a tf.data service make, in the order and with the rows that one process gives them.

A host's rows are cut into streams, and each stream is a job of the service that one worker runs from start to end. Workers share
no job: several of them on one would yield its batches in the order in which they are done. The service replaces SHARD_HINT by the
number of workers and each one's place in the dispatcher's list, so that stream i of n is empty on all workers but one:

    range(at least n).shard(SHARD_HINT, SHARD_HINT).filter(is i).flat_map(the stream)

`received` describes what arrives of a stream.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.input.dataset_ops import PARALLEL, as_written
from tpudata.input.graph.pipelines.service.received import received
from tpudata.input.graph.pipelines.service.workers import wait_for_workers
from tpudata.input.options.hosts import Rows
from tpudata.input.options.service import DataService


def divided(rows: Rows, workers: int) -> list[list[Rows]]:
    """Return the rows of each stream: a list for each group of whole batches, of one stream or of several that share a batch.

    Args:
        rows: rows of the host.
        workers: number of streams at most; fewer if they do not divide the batches evenly.
    """
    batches = rows.count // rows.batch_size
    if workers < 2 * batches:
        groups = max(count for count in range(1, min(workers, batches) + 1) if batches % count == 0)
        size = rows.count // groups
        firsts = range(rows.first, rows.last, size)
        return [[dataclasses.replace(rows, first=first, last=first + size)] for first in firsts]
    parts = min(workers // batches, rows.batch_size)
    cuts = [rows.batch_size * part // parts for part in range(parts + 1)]
    return [
        [Rows(end - begin, rows.total, first + begin, first + end) for begin, end in itertools.pairwise(cuts)]
        for first in range(rows.first, rows.last, rows.batch_size)
    ]


def served(
    service: DataService,
    rows: Rows,
    make: Callable[[Rows], tf.data.Dataset],
    finish: Callable[[tuple[Any, dict[str, tf.Tensor]], int], Any],
) -> tf.data.Dataset:
    """Return the batches of a host, made by the workers of a service.

    Args:
        service: the cluster.
        rows: rows of the host.
        make: returns a dataset of (element, extras) of some of the rows.
        finish: returns a batch, given (element, extras) of all rows of the batch, and their number.

    Raises:
        ServiceError: the workers were not there in time.
    """
    wait_for_workers(service)
    groups = divided(rows, operator.index(service.workers))
    count = sum(map(len, groups))
    numbers = iter(range(count))
    found = []
    for group in groups:
        if len(group) == 1:
            stream = make(group[0]).map(as_written(lambda *made: finish(made, rows.batch_size)), **PARALLEL)
            found.append(received(service, stream, next(numbers), count))
            continue
        # Images are mixed with others of the whole batch, so this process mixes them.
        parts = tf.data.Dataset.zip(tuple(received(service, make(part), next(numbers), count) for part in group))
        found.append(parts.map(as_written(lambda *made: finish(_joined(made), rows.batch_size)), **PARALLEL))
    if len(found) == 1:
        return found[0]
    per_turn = rows.count // rows.batch_size // len(found)
    turn = tf.repeat(tf.range(len(found), dtype=tf.int64), per_turn)
    choice = tf.data.Dataset.from_tensors(turn).unbatch().repeat()
    return tf.data.Dataset.choose_from_datasets(found, choice, stop_on_empty_dataset=True)


def _joined(made: tuple[Any, ...]) -> Any:
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *made)
