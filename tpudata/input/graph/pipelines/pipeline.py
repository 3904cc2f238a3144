"""Pipeline from records to batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.graph.pipelines.service.streams import divide_rows, join_parts, receive, take_turns
from tpudata.input.graph.pipelines.service.workers import wait_for_workers
from tpudata.input.graph.pipelines.whole_pass import choose_records, measure_lengths
from tpudata.input.graph.records import Records
from tpudata.input.graph.steps.step import fold, fold_to_element
from tpudata.input.graph.steps.step_plan import StepPlan, make_row_count_step
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Integers
from tpudata.input.order.order import Order
from tpudata.input.request import InputRequest

# Length of the prefetch buffer. AUTOTUNE doubles it after every pause of the consumer, such as a checkpoint: with batches of 6 MB
# it holds 200 MB after four pauses. A short buffer also stays in the CPU's cache, which makes a batch a fifth cheaper.
BATCHES_AHEAD = 2
# Keeps steps times batch size, a number of records, in int64.
_MAX_STEPS = 2**53


class SplitPipeline(Protocol):
    """Pipeline from the records of a split to batches."""

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of some rows of each global batch, from a step on."""

    def measure_lengths(self) -> Integers:
        """Return the length of the longest sequence of each record, by reading all records."""

    def select(self, request: InputRequest, ids: Integers, *, is_cached: bool = False) -> Pipeline:
        """Return the pipeline for some of the records.

        Args:
            request: fields and options of the subset; only the lengths of fields, the seed and the epochs may differ from this
                pipeline's.
            ids: record numbers among these records, int64 [n], ascending.
            is_cached: whether the subset uses the cache of these records.
        """


class Pipeline:
    """Pipeline from the records of a split to batches.

    Args:
        request: data and options of the input_fn.
        records: the records.
    """

    def __init__(self, request: InputRequest, records: Records) -> None:
        self._records = records
        self._options = request.options
        self._steps = StepPlan(request.fields, request.options, request.sequences)

    @classmethod
    def open(cls, request: InputRequest) -> Pipeline:
        """Return the pipeline of a whole split.

        Raises:
            DatasetError: an index or a cache is damaged.
            UsageError: the cache, or a shuffle of all records, does not fit the memory or the disk.
        """
        return cls(request, Records.open(request))

    def measure_lengths(self) -> Integers:
        """Return the length of the longest sequence of each record, by reading all records."""
        return measure_lengths(self._records)

    def choose_records(self, predicate: Callable[..., bool | tf.Tensor]) -> Integers:
        """Return the record numbers of the records for which a user's function returns True, by reading all records."""
        return choose_records(self._records, predicate, self._options.parse)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return self._records.count

    def select(self, request: InputRequest, ids: Integers, *, is_cached: bool = False) -> Pipeline:
        """Return the pipeline for some of the records.

        Args:
            request: fields and options of the subset; only the lengths of fields, the seed and the epochs may differ from this
                pipeline's.
            ids: record numbers among these records, int64 [n], ascending.
            is_cached: whether the subset uses the cache of these records.
        """
        return Pipeline(request, self._records.select(request, ids, is_cached=is_cached))

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of `input_fn`: some rows of each global batch, from a step on."""
        order = self._records.make_order(rows.total)
        return self._finish(self._serve_batches(order, rows, start_step), order, rows, start_step)

    def _serve_batches(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return a dataset of batches, made by the workers of a tf.data service if the options name one.

        Raises:
            ServiceError: not all workers registered in time.
        """
        service = self._options.service
        if service is None:
            return self._make_batches(order, rows, start_step)
        wait_for_workers(service)
        groups = divide_rows(rows, service.workers)
        # In each step, every group makes the same number of batches.
        batches_per_turn = rows.count // rows.batch_size // len(groups)
        # Groups of one stream: each stream has whole batches.
        if len(groups[0]) == 1:
            streams = [self._make_batches(order, stream_rows, start_step) for (stream_rows,) in groups]
            return take_turns(receive(service, streams), batches_per_turn)
        part_streams = [self._make_parts(order, part_rows, start_step) for group in groups for part_rows in group]
        # Steps of whole batches, such as mixing images, run in this process, which has all parts.
        finish_batch = fold_to_element(self._steps.plan_batch(rows, self._records.count))
        batch_streams = join_parts(receive(service, part_streams), len(groups[0]))
        return take_turns([dataset.map(finish_batch, **PARALLEL) for dataset in batch_streams], batches_per_turn)

    def _make_batches(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return a dataset of whole batches of a host's rows, after all steps."""
        steps = [*self._steps.row_steps, *self._steps.plan_batch(rows, self._records.count)]
        return self._prepare_records(order, rows, start_step).map(fold_to_element(steps), **PARALLEL)

    def _make_parts(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return a dataset of (element, extras) of parts of batches, before the steps of whole batches."""
        steps = [*self._steps.row_steps, make_row_count_step(rows.batch_size)]
        return self._prepare_records(order, rows, start_step).map(without_autograph(fold(steps)), **PARALLEL)

    def _prepare_records(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return a dataset of (records, extras) of some rows of each batch, after the steps of single records."""
        steps = self._steps
        dataset = self._records.batches(order, rows, start_step)
        # Here AutoGraph converts the user's functions among the steps.
        if steps.parse_steps:
            dataset = dataset.map(fold(steps.parse_steps), **PARALLEL)
        if steps.record_steps:
            dataset = dataset.unbatch().map(fold(steps.record_steps), **PARALLEL)
            steps.check_record(dataset.element_spec[0])
            dataset = dataset.batch(rows.batch_size, drop_remainder=True, **PARALLEL)
        return dataset

    def _finish(self, dataset: tf.data.Dataset, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """End the batches with the order or with `num_epochs`, set their number and the options of the dataset, and prefetch some.

        Args:
            dataset: the batches of the host, from `start_step` on.
            order: order of the records.
            rows: rows of each global batch that the host feeds.
            start_step: number of global batches that are done.

        Raises:
            UsageError: the epochs have no whole batch, or too many steps to count.
        """
        count = tf.data.INFINITE_CARDINALITY
        epochs = self._options.num_epochs
        batches_per_step = rows.count // rows.batch_size
        if order.steps is not None:
            # The order ends by itself.
            count = max(0, order.steps - start_step) * batches_per_step
        elif epochs is not None:
            steps = epochs * order.num_records // rows.total
            if steps > _MAX_STEPS:
                raise UsageError(
                    f"num_epochs={format_value(epochs)}: they have more than {_MAX_STEPS:,} steps. Pass None."
                )
            if steps == 0:
                raise UsageError(
                    f"num_epochs={epochs}: {count_text(order.num_records, 'record')} do not fill one global batch of {rows.total}."
                    " Choose a smaller batch size, or more epochs."
                )
            count = max(0, steps - start_step) * batches_per_step
            dataset = dataset.take(count)
        options = tf.data.Options()
        # Each worker takes its part of every global batch, if `experimental_distribute_dataset` divides one.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        # Iterators can be saved: TensorFlow takes the reading of a range for stateful, which it is not.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(BATCHES_AHEAD)
        return dataset.with_options(options)
