"""Batches that the workers of a tf.data service make, with the same rows in the same order as one process would make them.

A host's rows are cut into streams, and each stream is a job of the service that one worker runs from start to end. Workers share
no job: they would yield its batches in the order in which the batches are finished. The service replaces SHARD_HINT with the
number of workers and with the worker's index in the dispatcher's list, so that stream i of n is empty on all workers but one:

    range(at least n).shard(SHARD_HINT, SHARD_HINT).filter(is i).flat_map(the stream)

`receive_stream` describes how a stream is received.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import tensorflow as tf

from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.graph.pipelines.service.receive_stream import receive_stream
from tpudata.input.options.hosts import Rows
from tpudata.input.options.service import DataService
from tpudata.input.order.training import find_largest_divisor
from tpudata.tensor_types import Element


def divide_rows(rows: Rows, max_streams: int) -> list[list[Rows]]:
    """Divide a host's rows into streams of whole batches, or of parts of batches if there are enough workers for parts.

    Args:
        rows: rows of the host.
        max_streams: maximum number of streams, one for each worker; there are fewer if it does not divide the batches evenly.

    Returns:
        Groups of `Rows`; each `Rows` is one stream. A group is one stream of whole batches, or the streams of the parts of one
        batch of each step.
    """
    num_batches = rows.count // rows.batch_size
    if max_streams < 2 * num_batches:
        num_streams = find_largest_divisor(num_batches, max_streams)
        rows_per_stream = rows.count // num_streams
        firsts = range(rows.first, rows.stop, rows_per_stream)
        return [[dataclasses.replace(rows, first=first, stop=first + rows_per_stream)] for first in firsts]
    # With at least two workers for each batch of a step, each worker makes a part of a batch.
    parts_per_batch = min(max_streams // num_batches, rows.batch_size)
    # Row of a batch at which each part begins, and last the number of rows.
    cuts = [rows.batch_size * part // parts_per_batch for part in range(parts_per_batch + 1)]
    return [
        [
            Rows(
                batch_size=part_stop - part_first,
                total=rows.total,
                first=batch_first + part_first,
                stop=batch_first + part_stop,
            )
            for part_first, part_stop in itertools.pairwise(cuts)
        ]
        for batch_first in range(rows.first, rows.stop, rows.batch_size)
    ]


def receive(service: DataService, streams: Sequence[tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Return a dataset for each stream, received from the worker that makes it; all workers must have registered."""
    return [receive_stream(service, stream, index, len(streams)) for index, stream in enumerate(streams)]


def join_parts(streams: Sequence[tf.data.Dataset], parts_per_batch: int) -> list[tf.data.Dataset]:
    """Return datasets of whole batches, each joined from the `parts_per_batch` neighbouring streams of its parts."""

    def join(*parts: Element) -> Element:
        return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, 0), *parts)

    starts = range(0, len(streams), parts_per_batch)
    groups = [tuple(streams[start : start + parts_per_batch]) for start in starts]
    return [tf.data.Dataset.zip(group).map(without_autograph(join), **PARALLEL) for group in groups]


def take_turns(streams: Sequence[tf.data.Dataset], batches_per_turn: int) -> tf.data.Dataset:
    """Return a dataset of the batches of streams, which take turns, `batches_per_turn` batches each, until one has ended."""
    if len(streams) == 1:
        return streams[0]
    # The index of the stream of each batch, in one round of turns.
    stream_indices = tf.repeat(tf.range(len(streams), dtype=tf.int64), batches_per_turn)
    choices = tf.data.Dataset.from_tensors(stream_indices).unbatch().repeat()
    return tf.data.Dataset.choose_from_datasets(list(streams), choices, stop_on_empty_dataset=True)
