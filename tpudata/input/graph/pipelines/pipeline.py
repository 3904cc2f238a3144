"""Pipeline from records to batches."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from tpudata.console.tables import counted
from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import PARALLEL, as_written
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.graph.batch import with_rows
from tpudata.input.graph.batch_steps import BatchSteps
from tpudata.input.graph.pipelines.service.streams import served
from tpudata.input.graph.pipelines.whole_pass import chosen_records, record_lengths
from tpudata.input.graph.reading.cache import CachePlan
from tpudata.input.graph.reading.records import Order, Records
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.order.chunks import Integers
from tpudata.input.order.evaluation import EvaluationOrder

# Length of the prefetch buffer. AUTOTUNE doubles it after every pause of the consumer, such as a checkpoint: with batches of 6 MB
# it held 200 MB after four pauses. A short buffer also stays in the CPU's cache, which makes a batch a fifth cheaper.
BATCHES_AHEAD = 2
# Batches are counted in int64, and their records, too.
_MAX_STEPS = 2**53


class SplitPipeline(Protocol):
    """Pipeline from the records of a split to batches."""

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of some rows of each global batch, from a step on."""

    def lengths(self) -> Integers:
        """Return the length of the longest sequence of each record, which reads all records."""

    def part(self, ids: Integers, fields: Fields, options: Options, *, is_cached: bool = False) -> Pipeline:
        """Return the pipeline for some of the records."""


class Pipeline:
    """Pipeline from the records of a split to batches.

    Args:
        records: the records.
        fields: fields that are read of each record.
        options: options of feeding.
        cache: place of decoded records, or None.
    """

    def __init__(self, records: Records, fields: Fields, options: Options, cache: CachePlan | None) -> None:
        self._records = records
        self._options = options
        self._cache = cache
        self._batch_steps = BatchSteps(fields, options)

    @classmethod
    def open(cls, files: SplitFiles, fields: Fields, options: Options, cache: CachePlan | None) -> Pipeline:
        """Return the pipeline of a whole split; the arguments and errors are those of `Records.open`."""
        return cls(Records.open(files, fields, options, cache), fields, options, cache)

    def lengths(self) -> Integers:
        """Return the length of the longest sequence of each record, which reads all records."""
        return record_lengths(self._records)

    def chosen(self, choose: Callable[..., Any]) -> Integers:
        """Return the numbers of the records that a user's function chooses; reads them all."""
        return chosen_records(self._records, choose, self._options.parse)

    @property
    def records(self) -> int:
        """Number of records."""
        return self._records.count

    def part(self, ids: Integers, fields: Fields, options: Options, *, is_cached: bool = False) -> Pipeline:
        """Return the pipeline for some of the records.

        Args:
            ids: int64 [records], their numbers among these, ascending.
            fields: fields to read; they may differ in length only.
            options: options of feeding; seed and epochs may differ.
            is_cached: whether decoded records are kept, as those of this pipeline are.
        """
        cache = self._cache if is_cached else None
        return Pipeline(self._records.part(ids, fields, options, cache), fields, options, cache)

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return what `input_fn` returns."""
        order = self._records.order(rows.total)
        finish = functools.partial(self._finished, total=rows.total)
        service = self._options.service
        if service is None:
            dataset = self._made(order, rows, start_step, finish)
        else:
            dataset = served(service, rows, lambda part: self._made(order, part, start_step, with_rows), finish)
        return self._counted(dataset, order, rows, start_step)

    def _made(self, order: Order, rows: Rows, start_step: int, finish: Callable[..., Any]) -> tf.data.Dataset:
        """Return a dataset of `finish((element, extras), rows.batch_size)`."""
        records, elements, batch_size = self._records, self._batch_steps, rows.batch_size
        dataset = records.batches(order, rows, start_step)
        if self._options.parse is not None:
            # AutoGraph converts the user's function, which may branch on tensors.
            dataset = dataset.map(elements.user_parsed, **PARALLEL)
        if self._options.one_by_one:
            dataset = dataset.unbatch().map(elements.row, **PARALLEL)
            elements.check_row(dataset.element_spec[0])
            dataset = dataset.batch(batch_size, drop_remainder=True, **PARALLEL)

        def finished(parsed: Any, extras: dict[str, tf.Tensor]) -> Any:
            prepare = elements.move_places if self._options.one_by_one else elements.rows
            return finish(prepare(parsed, extras), batch_size)

        return dataset.map(as_written(finished), **PARALLEL)

    def _finished(self, made: tuple[Any, dict[str, tf.Tensor]], batch_size: int, *, total: int) -> Any:
        element, extras = self._batch_steps.batch(*made, batch_size)
        if not self._options.training:
            self._batch_steps.check_room(element, self._records.count, total)
        return self._batch_steps.weighted(element, extras)

    def _counted(self, dataset: tf.data.Dataset, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the batches with a known number of them, and prefetch some."""
        count, epochs = tf.data.INFINITE_CARDINALITY, self._options.num_epochs
        per_step = rows.count // rows.batch_size
        if isinstance(order, EvaluationOrder):
            count = max(0, order.steps - start_step) * per_step
        elif epochs is not None:
            steps = operator.index(epochs) * order.records // rows.total
            if steps > _MAX_STEPS:
                raise UsageError(
                    f"num_epochs={epochs}: they have {steps:,} steps (expected {_MAX_STEPS:,} at most). Pass None."
                )
            if steps == 0:
                raise UsageError(
                    f"num_epochs={epochs}: {counted(order.records, 'record')} do not fill one global batch of {rows.total}."
                    " Choose a smaller batch size, or more epochs."
                )
            count = max(0, steps - start_step) * per_step
            dataset = dataset.take(count)
        options = tf.data.Options()
        # Each worker takes its part of every global batch, if `experimental_distribute_dataset` divides one.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        # Iterators can be saved: TensorFlow takes the reading of a range for stateful, which it is not.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(BATCHES_AHEAD)
        return dataset.with_options(options)
