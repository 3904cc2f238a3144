"""Pipeline for batches of several lengths; `tpudata.input.order.buckets` describes their order."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.dataset_ops import without_autograph
from tpudata.input.graph.pipelines.pipeline import BATCHES_AHEAD, Pipeline, SplitPipeline
from tpudata.input.options.hosts import Rows
from tpudata.input.order.buckets import Bucket, BucketSteps, derive_bucket_seed, find_buckets
from tpudata.input.request import InputRequest


class BucketPipeline:
    """Pipeline for length buckets.

    Args:
        pipeline: all records, padded to the longest length.
        request: data and options of the input_fn.
    """

    def __init__(self, pipeline: SplitPipeline, request: InputRequest) -> None:
        self._pipeline = pipeline
        self._request = request
        self._options = request.options
        self._bucket_lengths = list(request.options.tokens.buckets or ())

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of `input_fn`; `rows` are the longest bucket's, and shorter buckets have proportionally more.

        Raises:
            UsageError: no bucket has records for one global batch.
        """
        # The dataset may belong to a graph of TensorFlow 1; the lengths of records are measured outside of it.
        with tf.init_scope():
            buckets = self._buckets
        # A batch of a shorter bucket has more rows, and at most as many tokens: the factor is rounded down.
        factors = [self._bucket_lengths[-1] // bucket.length for bucket, _ in buckets]
        record_counts = [len(bucket.ids) for bucket, _ in buckets]
        seed = self._options.seed if self._options.training else None
        batch_sizes = [rows.total * factor for factor in factors]
        bucket_steps = BucketSteps(record_counts, batch_sizes, seed, self._options.num_epochs)
        steps = bucket_steps.steps
        if steps == 0:
            raise UsageError(
                f"num_epochs={self._options.num_epochs}: no bucket has records for one global batch. Choose a smaller batch size."
            )
        start_steps = bucket_steps.count_batches_before(start_step)
        datasets = [
            pipeline.batches(rows.scale(factor), bucket_start)
            for (_, pipeline), factor, bucket_start in zip(buckets, factors, start_steps, strict=True)
        ]
        # A start after the last step leaves no steps.
        stop_step = np.iinfo(np.int64).max if steps is None else max(start_step, steps)
        batches_per_step = rows.count // rows.batch_size
        choices = bucket_steps.list_buckets(start_step, stop_step).flat_map(
            without_autograph(lambda bucket: tf.data.Dataset.from_tensors(bucket).repeat(batches_per_step))
        )
        dataset = tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=True)
        num_batches = tf.data.INFINITE_CARDINALITY if steps is None else (stop_step - start_step) * batches_per_step
        return dataset.apply(tf.data.experimental.assert_cardinality(num_batches)).prefetch(BATCHES_AHEAD)

    @functools.cached_property
    def _buckets(self) -> list[tuple[Bucket, Pipeline]]:
        """The buckets, each with its pipeline; to find them, all records are read once."""
        buckets = find_buckets(self._pipeline.measure_lengths(), self._bucket_lengths)
        return [(bucket, self._make_pipeline(bucket, bucket_index)) for bucket_index, bucket in enumerate(buckets)]

    def _make_pipeline(self, bucket: Bucket, bucket_index: int) -> Pipeline:
        """Return the pipeline of one bucket: its records, padded to its length.

        In training their order is endless, with a separate seed.
        """
        fields, options = self._request.fields, self._options
        inputs = (
            dataclasses.replace(field, shape=(bucket.length,)) if field.is_padded_sequence else field
            for field in fields.inputs
        )
        seed = derive_bucket_seed(options.seed, bucket_index)
        # `BucketSteps` ends training after `num_epochs`.
        request = dataclasses.replace(
            self._request,
            fields=dataclasses.replace(fields, inputs=tuple(inputs)),
            options=dataclasses.replace(options, seed=seed, num_epochs=None),
        )
        return self._pipeline.select(request, bucket.ids)
