"""One stream of a tf.data service, as the client receives it.

Elements are numbered, since TensorFlow does not report that a worker restarted and began its stream again. The last one is followed
by a mark: without it, a stream whose worker has not registered, or is lost, would look like one that has ended. A clock runs in
parallel, since TensorFlow waits for ever for the next element of a killed worker.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.input.dataset_ops import ensure, without_autograph
from tpudata.input.options.service import DataService

# A dataset that is sharded needs an element for each worker.
MAX_WORKERS = 1024
_RESTARTED = (
    "tf.data service: a worker restarted or lost a batch. Make the dataset again with start_step, the number of"
    " completed steps."
)
_AGAIN = "Start it, and make the dataset again with start_step, the number of completed steps."
# Part of the error message of a stream without elements for too long.
SILENT = "gave no batch for"
# The end of a pass waits for some ticks.
_TICK_SECONDS = 0.05
_TICK, _ELEMENT, _END = range(3)


def receive_stream(service: DataService, stream: tf.data.Dataset, stream_index: int, count: int) -> tf.data.Dataset:
    """Return stream `stream_index` of `count`, received from the worker that makes it."""
    own_part = list_parts(count).filter(without_autograph(lambda index: index == stream_index))
    marked = _mark_end(stream)
    numbered = own_part.flat_map(without_autograph(lambda _: marked.enumerate()))
    worker = f"tf.data service at {service.address}: the worker of part {stream_index} of {count}"
    missing = f"{worker} ended its part early: it has not registered yet, or was lost. {_AGAIN}"
    silent = f"{worker} {SILENT} {service.timeout_seconds:g} s (DataService's timeout_seconds). {_AGAIN}"

    def check_order(expected: tf.Tensor, received_element: tuple[tf.Tensor, Any]) -> Any:
        index, marked_element = received_element
        is_next = tf.equal(index, expected)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, is_next, _RESTARTED), marked_element)

    received = limit_waits(distribute_to_workers(service, numbered), service.timeout_seconds, silent)
    complete = tf.data.Dataset.zip((tf.data.Dataset.counter(), received)).map(without_autograph(check_order))
    complete = complete.concatenate(_make_failing(complete.element_spec, missing))
    elements_with_kind = complete.take_while(without_autograph(lambda kind, _: tf.equal(kind, _ELEMENT)))
    return elements_with_kind.map(without_autograph(lambda _, element: element))


def list_parts(count: int = 0) -> tf.data.Dataset:
    """Return a dataset that yields on each worker the indices of its parts, of at least `count` in all."""
    hint = tf.data.experimental.SHARD_HINT
    return tf.data.Dataset.range(max(count, MAX_WORKERS)).shard(hint, hint)


def distribute_to_workers(service: DataService, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset that is sharded by hints, computed by the workers."""
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
    return stream.map(without_autograph(lambda *element: (kind, _join_element(element)))).concatenate(end)


def _make_failing(spec: Any, message: str) -> tf.data.Dataset:
    """Return a dataset of one element, which fails with a message."""

    def fail(_: tf.Tensor) -> Any:
        false = tf.constant(False)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, false, message), _make_zeros(spec))

    return tf.data.Dataset.range(1).map(without_autograph(fail))


def limit_waits(dataset: tf.data.Dataset, seconds: float, message: str) -> tf.data.Dataset:
    """Return a dataset that fails with `message` if the next element takes longer than `seconds`.

    A clock dataset ticks in parallel, and the consumer takes whichever element comes first, so ticks only count while it waits.
    """
    spec = dataset.element_spec
    tick_seconds = min(_TICK_SECONDS, seconds / 20)
    max_ticks = round(seconds / tick_seconds)

    def make_mark(kind: int) -> Any:
        return without_autograph(lambda _: (tf.constant(kind, tf.int32), tf.experimental.Optional.empty(spec)))

    def make_element(*element: Any) -> Any:
        return tf.constant(_ELEMENT, tf.int32), tf.experimental.Optional.from_value(_join_element(element))

    end = tf.data.Dataset.range(1).map(make_mark(_END))
    elements = dataset.map(without_autograph(make_element)).concatenate(end)
    clock = _slow_down(tf.data.Dataset.range(1).repeat(), tick_seconds).map(make_mark(_TICK))

    def take_source(source_index: tf.Tensor) -> tf.data.Dataset:
        no_elements, all_elements = tf.constant(0, tf.int64), tf.constant(-1, tf.int64)
        is_dataset = tf.equal(source_index, 0)
        dataset_elements = elements.take(tf.where(is_dataset, all_elements, no_elements))
        return dataset_elements.concatenate(clock.take(tf.where(is_dataset, no_elements, all_elements)))

    merged = tf.data.Dataset.range(2).interleave(
        without_autograph(take_source), cycle_length=2, num_parallel_calls=2, deterministic=False
    )

    def count_ticks(ticks: tf.Tensor, kind_and_value: tuple[tf.Tensor, Any]) -> Any:
        kind, element = kind_and_value
        ticks = tf.where(tf.equal(kind, _TICK), ticks + 1, 0)
        # Up to two ticks were made before the consumer waited.
        return ticks, (ensure(kind, ticks <= max_ticks + 2, message), element)

    with_limit = merged.scan(tf.constant(0), without_autograph(count_ticks))
    without_ticks = with_limit.filter(without_autograph(lambda kind, _: tf.not_equal(kind, _TICK)))
    return without_ticks.take_while(without_autograph(lambda kind, _: tf.equal(kind, _ELEMENT))).map(
        without_autograph(lambda _, element: element.get_value())
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
    def make_tensor(tensor_spec: Any) -> tf.Tensor:
        tensor = tf.zeros([size or 0 for size in tensor_spec.shape.as_list()], tensor_spec.dtype)
        return tf.ensure_shape(tensor, tensor_spec.shape)

    return tf.nest.map_structure(make_tensor, spec)


def _join_element(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element
