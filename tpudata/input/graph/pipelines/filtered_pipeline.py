"""Pipeline for the records that a user's function selects."""

from __future__ import annotations

import functools
import logging
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.errors import UsageError
from tpudata.input.graph.pipelines.pipeline import Pipeline
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Integers
from tpudata.input.request import InputRequest

_log = logging.getLogger("tpudata")


class FilteredPipeline:
    """Pipeline for the records that a function selects.

    The first call reads all records once, so that orders, hosts and epochs count only the selected ones.

    Args:
        pipeline: all records.
        request: data and options of the input_fn.
    """

    def __init__(self, pipeline: Pipeline, request: InputRequest) -> None:
        self._pipeline = pipeline
        self._request = request

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of `input_fn`: some rows of each global batch of the selected records, from a step on."""
        return self._selected_pipeline.batches(rows, start_step)

    def measure_lengths(self) -> Integers:
        """Return the length of the longest sequence of each selected record, by reading all records."""
        return self._selected_pipeline.measure_lengths()

    def select(self, request: InputRequest, ids: Integers, *, is_cached: bool = False) -> Pipeline:
        """Return the pipeline for some of the selected records."""
        return self._selected_pipeline.select(request, ids, is_cached=is_cached)

    @functools.cached_property
    def _selected_pipeline(self) -> Pipeline:
        """Pipeline of the selected records, found by reading all records once.

        Raises:
            UsageError: the function selects no record.
        """
        predicate = self._request.options.filter
        assert predicate is not None
        # In another thread, which has no default graph of TensorFlow 1: in such a graph, the function's == would compare objects.
        with ThreadPoolExecutor(1, thread_name_prefix="tpudata-filter") as pool:
            ids = pool.submit(self._pipeline.choose_records, predicate).result()
        total = count_text(self._pipeline.num_records, "record")
        if not len(ids):
            raise UsageError(
                f"filter: {self._request.name} has {total}, and it chose none of them (expected 1 or more). Change it."
            )
        _log.info("%s: filter chose %s of %s.", self._request.name, f"{len(ids):,}", total)
        return self._pipeline.select(self._request, ids, is_cached=True)
