"""Batches that the workers of a tf.data service make, in the order and with the rows that one process gives them.

A host's rows are cut into streams, and each stream is a job of the service that one worker runs from start to end. Workers share
no job: several of them on one would yield its batches in the order in which they are done. The service replaces SHARD_HINT by the
number of workers and each one's place in the dispatcher's list, so that stream i of n is empty on all workers but one:

    range(at least n).shard(SHARD_HINT, SHARD_HINT).filter(is i).flat_map(the stream)

`receive_stream` describes how a stream is received.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.graph.pipelines.service.receive_stream import receive_stream
from tpudata.input.options.hosts import Rows
from tpudata.input.options.service import DataService


def divide_rows(rows: Rows, workers: int) -> list[list[Rows]]:
    """Divide a host's rows into streams; return a list of groups, whose streams together make whole batches.

    Args:
        rows: rows of the host.
        workers: largest number of streams; fewer if they do not divide the batches evenly.
    """
    batches = rows.count // rows.batch_size
    if workers < 2 * batches:
        groups = max(count for count in range(1, min(workers, batches) + 1) if batches % count == 0)
        size = rows.count // groups
        firsts = range(rows.first, rows.stop, size)
        return [[dataclasses.replace(rows, first=first, stop=first + size)] for first in firsts]
    parts_per_batch = min(workers // batches, rows.batch_size)
    cuts = [rows.batch_size * part // parts_per_batch for part in range(parts_per_batch + 1)]
    return [
        [Rows(end - begin, rows.total, first + begin, first + end) for begin, end in itertools.pairwise(cuts)]
        for first in range(rows.first, rows.stop, rows.batch_size)
    ]


def receive(service: DataService, streams: Sequence[tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Receive streams from the workers of a service, which must have registered."""
    return [receive_stream(service, stream, index, len(streams)) for index, stream in enumerate(streams)]


def join_parts(streams: Sequence[tf.data.Dataset], count: int) -> list[tf.data.Dataset]:
    """Return datasets of whole batches, each from `count` neighbouring streams of their parts."""

    def join(*parts: Any) -> Any:
        return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, 0), *parts)

    groups = [tuple(streams[first : first + count]) for first in range(0, len(streams), count)]
    return [tf.data.Dataset.zip(group).map(without_autograph(join), **PARALLEL) for group in groups]


def take_turns(streams: Sequence[tf.data.Dataset], per_turn: int) -> tf.data.Dataset:
    """Return the batches of streams: `per_turn` of one, then as many of the next one, in turn."""
    if len(streams) == 1:
        return streams[0]
    turn = tf.repeat(tf.range(len(streams), dtype=tf.int64), per_turn)
    choice = tf.data.Dataset.from_tensors(turn).unbatch().repeat()
    return tf.data.Dataset.choose_from_datasets(list(streams), choice, stop_on_empty_dataset=True)
