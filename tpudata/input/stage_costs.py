"""Cost of each stage of feeding: the same records are read, parsed and prepared, each time with one more stage."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from tpudata.error_text.lines import first_line
from tpudata.errors import DatasetError
from tpudata.format import Dataset
from tpudata.format.read_errors import translate_reader_error
from tpudata.input.files.shards import open_shards
from tpudata.input.graph.records import Records
from tpudata.input.input_fn import InputFn
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.options.reading import Reading
from tpudata.input.options.tokens import Tokens
from tpudata.input.request import InputRequest, list_fields

# A stage runs for this share of the time before it is measured, while TensorFlow tunes the number of threads.
_WARM_UP_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class Stage:
    """Cost of feeding up to and including a stage.

    Attributes:
        name: "read", "parse", "stream", or the name of an input_fn.
        num_records: number of records.
        seconds: duration.
        cpu_seconds: CPU time of all threads of the process, user and system.
        other_cpu_seconds: CPU time of all other processes of the machine; 0 if unknown.
    """

    name: str
    num_records: int
    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.num_records / self.seconds

    @property
    def cores(self) -> float:
        """Number of cores that were busy with this process."""
        return self.cpu_seconds / self.seconds

    @property
    def other_cores(self) -> float:
        """Number of cores that were busy with other processes."""
        return self.other_cpu_seconds / self.seconds

    @property
    def cpu_per_record(self) -> float:
        """Seconds of CPU time for a record."""
        return self.cpu_seconds / self.num_records


class Stages:
    """Measurement of the stages of feeding a split, each with all earlier ones.

    - read: read the records from the storage, compare their checksums, and unpack them if they are compressed.
    - parse: the same, and parse them in the order in which they are fed; images stay encoded.
    - then the work of each input_fn: decode, crop and augment images, and make batches.

    Args:
        dataset: the dataset.
        split: name of the split.
        training: whether the input_fns are for training.
        feature_options: what the input_fns read of each record.
        tokens: options of tokens of the input_fns.
        batch_size: records in a batch.
        reading: the argument `reading` of the input_fns; None for the default.

    Attributes:
        num_reads: number of pieces that are read at the same time; None if the split is not read in pieces, the default on a disk.
        piece_memory: bytes of memory that a piece takes while it is read; None if the split is not read in pieces.
        is_held: whether training reads all records once and holds them in memory, because they fit the shuffle window.

    Raises:
        FeatureError: a feature has no static shape.
        UsageError: an option does not fit the dataset.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        *,
        training: bool,
        feature_options: FeatureOptions,
        tokens: Tokens,
        batch_size: int,
        reading: Reading | None = None,
    ) -> None:
        self._path = dataset.path
        self._batch_size = batch_size
        files = open_shards(dataset, split)
        fields = list_fields(
            files,
            feature_options,
            is_parsed_by_user=False,
            image_size=None,
            keep_encoded=True,
            tokens=tokens,
        )
        options = Options(training=training, reading=reading or Reading())
        self._records = Records.open(InputRequest(files, fields, options))
        self.num_reads, self.piece_memory = self._records.plan.num_reads, self._records.plan.piece_memory
        self._records_per_pass = math.inf if training else self._records.count
        self.is_held = self._records.window.has_all

    def measure(self, input_fns: Mapping[str, InputFn], seconds: float) -> Iterator[Stage]:
        """Yield the stages, one after the other.

        Args:
            input_fns: by name, the input_fns that `make_input_fn` made for the split, each with more work than the previous one.
            seconds: duration of the measurement of each stage.

        Raises:
            CorruptionError: a record is damaged.
            FeatureError: a record does not match the dataset.
            DatasetError: records cannot be parsed or decoded.
            StorageError: a file cannot be read.
        """
        # Pieces requested together arrive together, so whole rounds of `num_reads` pieces are measured; it is None without pieces.
        read_counts = self._count_records(self._records.read_counts(), num_rows=None)
        yield _measure_stage("read", read_counts, seconds, elements_per_round=self.num_reads or 1)
        order, rows = self._records.make_order(self._batch_size), Rows.all(self._batch_size)
        parsed = self._records.batches(order, rows, start_step=0).prefetch(tf.data.AUTOTUNE)
        yield _measure_stage("parse", self._count_records(parsed, self._batch_size), seconds)
        for name, input_fn in input_fns.items():
            batches = input_fn({"batch_size": self._batch_size})
            yield _measure_stage(name, self._count_records(batches, self._batch_size), seconds)

    def measure_stream(self, seconds: float) -> Stage:
        """Return the cost of reading one piece after the other, as each stream of an object store does.

        Args:
            seconds: duration of the measurement.

        Raises:
            CorruptionError: a record is damaged.
            StorageError: a file cannot be read.
        """
        return _measure_stage(
            "stream", self._count_records(self._records.read_counts(num_reads=1), num_rows=None), seconds
        )

    def _count_records(self, dataset: tf.data.Dataset, num_rows: int | None) -> Iterator[int]:
        """Iterate over a dataset repeatedly, and yield the number of records of each element, without padding.

        Args:
            dataset: a dataset of batches, or of record counts.
            num_rows: number of rows of each element, padding included; None if the elements are record counts.

        Raises:
            TpudataError: a record is damaged or does not match the dataset, or a file cannot be read.
        """
        while True:
            # Only elements that are batches of an evaluation have padding, in the last one.
            remaining = math.inf if num_rows is None else self._records_per_pass
            try:
                for element in dataset:
                    count = int(element) if num_rows is None else num_rows
                    yield int(min(count, remaining))
                    remaining = max(0, remaining - count)
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                translated = translate_reader_error(error)
                if translated is not None:
                    raise translated from error
                # TensorFlow puts its own traceback after the message, which Python cannot decode if it has a record.
                message = first_line(error.message if isinstance(error, tf.errors.OpError) else error)
                raise DatasetError(f"{self._path}: no batch could be made: {message}") from error


def _measure_stage(name: str, counts: Iterator[int], seconds: float, elements_per_round: int = 1) -> Stage:
    """Measure the cost of iterating over the elements of a stage.

    Args:
        name: name of the stage.
        counts: number of records of each element.
        seconds: duration of the measurement.
        elements_per_round: number of elements that are produced together; whole rounds of them are measured.
    """
    # Close the iterator immediately, so that no thread of a stage runs during the next stage.
    with contextlib.closing(counts):  # type: ignore[type-var]
        begin = time.perf_counter()
        _take_round(counts, elements_per_round)
        while time.perf_counter() - begin < _WARM_UP_SHARE * seconds:
            _take_round(counts, elements_per_round)
        begin, cpu_begin, machine_cpu_begin = time.perf_counter(), time.process_time(), _read_machine_cpu_seconds()
        # At least one round, however short the time is.
        num_records = _take_round(counts, elements_per_round)
        while (elapsed := time.perf_counter() - begin) < seconds:
            num_records += _take_round(counts, elements_per_round)
        cpu = time.process_time() - cpu_begin
        machine_cpu = _read_machine_cpu_seconds() - machine_cpu_begin
        # The machine's seconds are 0 if unknown, and count in ticks, so the difference may be below 0.
        return Stage(name, num_records, elapsed, cpu, max(0.0, machine_cpu - cpu))


def _take_round(counts: Iterator[int], elements_per_round: int) -> int:
    """Return the number of records of the next `elements_per_round` elements."""
    return sum(itertools.islice(counts, elements_per_round))


def count_usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_machine_cpu_seconds() -> float:
    """Return the CPU time of all processes since the start of the machine, in seconds: 0 except on Linux with all cores usable."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    # A line for each core follows the line of all cores. The load of cores that this process may not use does not slow it down.
    if sum(line.startswith("cpu") for line in lines) - 1 != count_usable_cores():
        return 0.0
    # The fields of a line, in clock ticks; see proc(5).
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in lines[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
