"""One stream of a tf.data service, as the client receives it.

Elements are numbered, since TensorFlow does not report that a worker restarted and began its stream again. The last one is followed
by a mark: without it, a stream whose worker has not registered, or is lost, would look like one that has ended. A clock runs in
parallel, since TensorFlow waits for ever for the next element of a killed worker.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tpudata.input.dataset_ops import ensure, without_autograph
from tpudata.input.elements import join_element
from tpudata.input.options.service import DataService
from tpudata.tensor_types import Element, Specs, Tensors

# Number of parts, and so the maximum number of workers: a dataset that is sharded needs an element for each worker.
NUM_PARTS = 1024
_RESTARTED = (
    "tf.data service: a worker restarted or lost a batch. Make the dataset again with start_step, the number of"
    " completed steps."
)
_AGAIN = "Start it, and make the dataset again with start_step, the number of completed steps."
# Part of the error message of a stream without elements for too long.
SILENT = "gave no batch for"
# Interval at which a waiting consumer is woken; the end of a pass waits for some of these ticks.
_TICK_SECONDS = 0.05
# Kinds of elements, as int32 next to the element.
_TICK, _ELEMENT, _END = range(3)


def receive_stream(
    service: DataService, stream: tf.data.Dataset, stream_index: int, num_streams: int
) -> tf.data.Dataset:
    """Return a dataset of a stream's elements, received from the worker that makes it.

    It fails with `tf.errors.InvalidArgumentError` if the worker has not registered, restarts, is lost, or gives no element in time.

    Args:
        service: the cluster whose worker makes the stream.
        stream: the stream, as a worker makes it.
        stream_index: index of the stream.
        num_streams: number of streams of this process.
    """
    part = list_parts(num_streams).filter(without_autograph(lambda index: index == stream_index))
    marked = _mark_end(stream)
    # The dataset is the stream on the worker that has the part, and empty on the others.
    numbered = part.flat_map(without_autograph(lambda _: marked.enumerate()))
    worker = f"tf.data service at {service.address}: the worker of part {stream_index} of {num_streams}"
    missing_message = f"{worker} ended its part early: it has not registered yet, or was lost. {_AGAIN}"
    silent_message = f"{worker} {SILENT} {service.timeout_seconds:g} s (DataService's timeout_seconds). {_AGAIN}"

    def check_number(expected: tf.Tensor, numbered_element: tuple[tf.Tensor, tuple[tf.Tensor, Element]]) -> Tensors:
        """Return (kind, element) without the number; fail if it is not the expected number."""
        number, kind_and_element = numbered_element
        is_next = tf.equal(number, expected)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, is_next, _RESTARTED), kind_and_element)

    received = limit_waits(distribute_to_workers(service, numbered), service.timeout_seconds, silent_message)
    in_order = tf.data.Dataset.zip((tf.data.Dataset.counter(), received)).map(without_autograph(check_number))
    # A complete stream stops at its mark: the failing element is reached only if the mark is missing.
    guarded = in_order.concatenate(_make_failing(in_order.element_spec, missing_message))
    with_kinds = guarded.take_while(without_autograph(lambda kind, _: tf.equal(kind, _ELEMENT)))
    return with_kinds.map(without_autograph(lambda _, element: element))


def list_parts(min_count: int = 0) -> tf.data.Dataset:
    """Return a dataset of the numbers of parts, 0, 1, ..., which the service divides among the workers: each yields its shard.

    There are `NUM_PARTS`, or `min_count` if it is more, so that each of up to `NUM_PARTS` workers has one.
    The dispatcher replaces SHARD_HINT with the number of workers and the index of the worker.
    """
    hint = tf.data.experimental.SHARD_HINT
    return tf.data.Dataset.range(max(min_count, NUM_PARTS)).shard(hint, hint)


def distribute_to_workers(service: DataService, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the elements of a dataset that has a `shard(SHARD_HINT, ...)`: each worker computes its shard."""
    return dataset.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.HINT,
            service.address,
            compression="AUTO" if service.compress else None,
        )
    )


def _mark_end(stream: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset of (kind, element): the stream's elements, followed by the mark of its end."""
    end = tf.data.Dataset.from_tensors((tf.constant(_END, tf.int32), _make_zeros(stream.element_spec)))
    kind = tf.constant(_ELEMENT, tf.int32)
    return stream.map(without_autograph(lambda *parts: (kind, join_element(parts)))).concatenate(end)


def _make_failing(spec: Specs, message: str) -> tf.data.Dataset:
    """Return a dataset of one element of a spec, which fails with a message when it is taken."""

    def fail(_: tf.Tensor) -> Tensors:
        false = tf.constant(False)
        return tf.nest.map_structure(lambda tensor: ensure(tensor, false, message), _make_zeros(spec))

    return tf.data.Dataset.range(1).map(without_autograph(fail))


def limit_waits(dataset: tf.data.Dataset, seconds: float, message: str) -> tf.data.Dataset:
    """Return the elements of a dataset; fail with `message` if the next one takes longer than `seconds`.

    A clock dataset ticks in parallel, and the consumer takes whichever element comes first, so ticks only count while it waits.
    """
    spec = dataset.element_spec
    # At least 20 ticks, so that short limits are kept to about 10 %.
    tick_seconds = min(_TICK_SECONDS, seconds / 20)
    max_ticks = round(seconds / tick_seconds)

    # All three kinds are (kind, optional element), so that they have one spec.
    def make_mark(kind: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.experimental.Optional]]:
        """Return a function that turns any tensor into (kind, no element)."""
        return without_autograph(lambda _: (tf.constant(kind, tf.int32), tf.experimental.Optional.empty(spec)))

    def make_element(*parts: Tensors) -> tuple[tf.Tensor, tf.experimental.Optional]:
        return tf.constant(_ELEMENT, tf.int32), tf.experimental.Optional.from_value(join_element(parts))

    end = tf.data.Dataset.range(1).map(make_mark(_END))
    elements = dataset.map(without_autograph(make_element)).concatenate(end)
    clock = _slow_down(tf.data.Dataset.range(1).repeat(), tick_seconds).map(make_mark(_TICK))

    def take_source(source_index: tf.Tensor) -> tf.data.Dataset:
        """Return the elements for index 0, and the clock for index 1."""
        # interleave traces this function once for both: so it joins both sources, of which one is empty.
        no_elements, all_elements = tf.constant(0, tf.int64), tf.constant(-1, tf.int64)
        is_dataset = tf.equal(source_index, 0)
        dataset_elements = elements.take(tf.where(is_dataset, all_elements, no_elements))
        return dataset_elements.concatenate(clock.take(tf.where(is_dataset, no_elements, all_elements)))

    merged = tf.data.Dataset.range(2).interleave(
        without_autograph(take_source), cycle_length=2, num_parallel_calls=2, deterministic=False
    )

    def count_ticks(
        num_ticks: tf.Tensor, kind_and_element: tuple[tf.Tensor, tf.experimental.Optional]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.experimental.Optional]]:
        """Return the number of ticks since the last element, and (kind, element); fail if there are too many ticks."""
        kind, element = kind_and_element
        num_ticks = tf.where(tf.equal(kind, _TICK), num_ticks + 1, 0)
        # Up to two ticks were made before the consumer waited.
        return num_ticks, (ensure(kind, num_ticks <= max_ticks + 2, message), element)

    with_limit = merged.scan(tf.constant(0), without_autograph(count_ticks))
    without_ticks = with_limit.filter(without_autograph(lambda kind, _: tf.not_equal(kind, _TICK)))
    return without_ticks.take_while(without_autograph(lambda kind, _: tf.equal(kind, _ELEMENT))).map(
        without_autograph(lambda _, element: element.get_value())
    )


def _slow_down(dataset: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    """Return the dataset with a pause before each element."""
    # In whole microseconds.
    pause = tf.constant(max(1, int(seconds * 1e6)), tf.int64)

    def add_pause(source: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset with the pause before each element; tf.data has a raw operation for it, but no public function."""
        variant = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(source),
            sleep_microseconds=pause,
            output_types=[spec.dtype for spec in tf.nest.flatten(source.element_spec)],
            output_shapes=[spec.shape for spec in tf.nest.flatten(source.element_spec)],
        )
        return tf.data.experimental.from_variant(variant, source.element_spec)

    return dataset.apply(add_pause)


def _make_zeros(spec: Specs) -> Tensors:
    """Return tensors of a spec, of zeros; unknown sizes are 0."""

    def make_tensor(tensor_spec: tf.TensorSpec) -> tf.Tensor:
        tensor = tf.zeros([size or 0 for size in tensor_spec.shape.as_list()], tensor_spec.dtype)
        return tf.ensure_shape(tensor, tensor_spec.shape)

    return tf.nest.map_structure(make_tensor, spec)
