"""One stream of a tf.data service, as the client receives it.

Elements are numbered, since TensorFlow does not report that a worker restarted and began its stream anew. The last one is followed
by a mark: without it, a stream whose worker has not registered, or is lost, would look like one that has ended. And next to the
stream runs a clock, since TensorFlow asks a worker that was killed for its next element for ever.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.input.dataset_ops import as_written, ensure
from tpudata.input.options.service import DataService

# A dataset that is sharded needs an element for each worker.
MOST_WORKERS = 1024
_RESTARTED = (
    "tf.data service: a worker restarted or lost a batch. Make the dataset again with start_step, the number of"
    " completed steps."
)
_AGAIN = "Start it, and make the dataset again with start_step, the number of completed steps."
# Part of the message of a stream that is silent.
SILENT = "gave no batch for"
# The end of a pass waits for some ticks.
_TICK_SECONDS = 0.05
_TICK, _ELEMENT, _END = range(3)


def receive_stream(service: DataService, stream: tf.data.Dataset, number: int, count: int) -> tf.data.Dataset:
    """Return stream `number` of `count`, which one worker makes."""
    mine = places(count).filter(as_written(lambda place: place == number))
    marked = _mark_end(stream)
    numbered = mine.flat_map(as_written(lambda _: marked.enumerate()))
    worker = f"tf.data service at {service.address}: the worker of part {number} of {count}"
    missing = f"{worker} ended its part early: it has not registered yet, or was lost. {_AGAIN}"
    silent = f"{worker} {SILENT} {service.timeout_seconds:g} s (DataService's timeout_seconds). {_AGAIN}"

    def check_order(expected: tf.Tensor, received_element: tuple[tf.Tensor, Any]) -> Any:
        place, marked_element = received_element
        in_turn = tf.equal(place, expected)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, in_turn, _RESTARTED), marked_element)

    arrived = limit_waits(from_workers(service, numbered), service.timeout_seconds, silent)
    complete = tf.data.Dataset.zip((tf.data.Dataset.counter(), arrived)).map(as_written(check_order))
    complete = complete.concatenate(_make_failing(complete.element_spec, missing))
    real = complete.take_while(as_written(lambda kind, _: tf.equal(kind, _ELEMENT)))
    return real.map(as_written(lambda _, element: element))


def places(count: int = 0) -> tf.data.Dataset:
    """Return a dataset that yields, on each worker, the numbers of the parts that it makes."""
    hint = tf.data.experimental.SHARD_HINT
    return tf.data.Dataset.range(max(count, MOST_WORKERS)).shard(hint, hint)


def from_workers(service: DataService, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the elements of a dataset, which is sharded by hints, as the workers make them."""
    return dataset.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.HINT,
            service.address,
            compression="AUTO" if service.compress else None,
        )
    )


def _mark_end(stream: tf.data.Dataset) -> tf.data.Dataset:
    """Return the elements with their kind, followed by a mark."""
    end = tf.data.Dataset.from_tensors((tf.constant(_END, tf.int32), _make_zeros(stream.element_spec)))
    kind = tf.constant(_ELEMENT, tf.int32)
    return stream.map(as_written(lambda *element: (kind, _join_element(element)))).concatenate(end)


def _make_failing(spec: Any, message: str) -> tf.data.Dataset:
    """Return a dataset of one element, which fails with a message."""

    def fail(_: tf.Tensor) -> Any:
        false = tf.constant(False)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, false, message), _make_zeros(spec))

    return tf.data.Dataset.range(1).map(as_written(fail))


def limit_waits(dataset: tf.data.Dataset, seconds: float, message: str) -> tf.data.Dataset:
    """Return the elements of a dataset in their order; fail if none comes for `seconds`.

    A clock ticks next to the dataset, and whoever asks takes what comes first. So its ticks count only while somebody waits.
    """
    spec = dataset.element_spec
    tick_seconds = min(_TICK_SECONDS, seconds / 20)
    most_ticks = round(seconds / tick_seconds)

    def without_value(kind: int) -> Any:
        return as_written(lambda _: (tf.constant(kind, tf.int32), tf.experimental.Optional.empty(spec)))

    def with_value(*element: Any) -> Any:
        return tf.constant(_ELEMENT, tf.int32), tf.experimental.Optional.from_value(_join_element(element))

    end = tf.data.Dataset.range(1).map(without_value(_END))
    elements = dataset.map(as_written(with_value)).concatenate(end)
    clock = _slow_down(tf.data.Dataset.range(1).repeat(), tick_seconds).map(without_value(_TICK))

    def one_of_both(which: tf.Tensor) -> tf.data.Dataset:
        none, everything = tf.constant(0, tf.int64), tf.constant(-1, tf.int64)
        is_first = tf.equal(which, 0)
        first_element = elements.take(tf.where(is_first, everything, none))
        return first_element.concatenate(clock.take(tf.where(is_first, none, everything)))

    merged = tf.data.Dataset.range(2).interleave(
        as_written(one_of_both), cycle_length=2, num_parallel_calls=2, deterministic=False
    )

    def count(ticks: tf.Tensor, item: tuple[tf.Tensor, Any]) -> Any:
        kind, element = item
        ticks = tf.where(tf.equal(kind, _TICK), ticks + 1, 0)
        # Some ticks were made before anybody waited.
        return ticks, (ensure(kind, ticks <= most_ticks + 2, message), element)

    counted = merged.scan(tf.constant(0), as_written(count))
    heard = counted.filter(as_written(lambda kind, _: tf.not_equal(kind, _TICK)))
    return heard.take_while(as_written(lambda kind, _: tf.equal(kind, _ELEMENT))).map(
        as_written(lambda _, element: element.get_value())
    )


def _slow_down(dataset: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    """Return the dataset with a pause before each element."""
    pause = tf.constant(max(1, int(seconds * 1e6)), tf.int64)

    def apply(source: tf.data.Dataset) -> tf.data.Dataset:
        variant = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(source),
            sleep_microseconds=pause,
            output_types=[spec.dtype for spec in tf.nest.flatten(source.element_spec)],
            output_shapes=[spec.shape for spec in tf.nest.flatten(source.element_spec)],
        )
        return tf.data.experimental.from_variant(variant, source.element_spec)

    return dataset.apply(apply)


def _make_zeros(spec: Any) -> Any:
    def zeros(item: Any) -> tf.Tensor:
        value = tf.zeros([size or 0 for size in item.shape.as_list()], item.dtype)
        return tf.ensure_shape(value, item.shape)

    return tf.nest.map_structure(zeros, spec)


def _join_element(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element
