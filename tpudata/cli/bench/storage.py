"""Rates at which an object store serves one request and many, and the load that feeding puts on it."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from tpudata.format import Dataset
from tpudata.storage import storage_for

if TYPE_CHECKING:
    from tpudata.input.stage_costs import Stage, Stages

# Number of requests; their median time is the latency.
_REQUEST_COUNT = 7


@dataclasses.dataclass(frozen=True)
class StorageRates:
    """Measured rates of an object store.

    Attributes:
        latency_seconds: time of a request for a byte, on an open connection.
        stream_rate: bytes per second of one stream, which reads one piece after the other.
        streams: number of streams that read at the same time for `total_rate`.
        total_rate: bytes per second of all streams together.
        cpu_per_byte: seconds of CPU time for a byte that is read.
        record_bytes: mean size of a record as stored.
        piece_memory: bytes of memory that a piece takes while it is read.
    """

    latency_seconds: float
    stream_rate: float
    streams: int
    total_rate: float
    cpu_per_byte: float
    record_bytes: float
    piece_memory: int

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as a JSON object."""
        return {
            "latency_seconds": self.latency_seconds,
            "stream_bytes_per_second": self.stream_rate,
            "streams": self.streams,
            "bytes_per_second": self.total_rate,
            "cpu_seconds_per_gigabyte": self.cpu_per_byte * 1e9,
        }

    def predict_load(self, records_per_second: float) -> dict[str, Any]:
        """Predict the load that a rate of records puts on the store and on this machine.

        Returns:
            A JSON object: `bytes_per_second`; the number of `streams` that read these bytes if each is as fast as a single one; the
            `memory_bytes` of the streams; and the number of `cores` that are busy with reading.
        """
        rate = records_per_second * self.record_bytes
        streams = math.ceil(rate / self.stream_rate)
        return {
            "bytes_per_second": rate,
            "streams": streams,
            "memory_bytes": streams * self.piece_memory,
            "cores": math.ceil(rate * self.cpu_per_byte),
        }


def measure_storage(
    dataset: Dataset, split_name: str, stages: Stages, reading_stage: Stage, seconds: float
) -> StorageRates:
    """Measure the store of a dataset.

    Args:
        dataset: the dataset, on an object store.
        split_name: name of the split.
        stages: stages of feeding the split.
        reading_stage: measurement of the first stage, which only reads.
        seconds: duration of the measurement of one stream.

    Raises:
        StorageError: a file cannot be read.
    """
    split = dataset.manifest.split(split_name)
    record_bytes = split.bytes / split.records
    # Both attributes are known for an object store.
    assert stages.num_reads is not None
    assert stages.piece_memory is not None
    return StorageRates(
        latency_seconds=_measure_latency(dataset.shard_path(split.shards[0])),
        stream_rate=stages.measure_stream(seconds).rate * record_bytes,
        streams=stages.num_reads,
        total_rate=reading_stage.rate * record_bytes,
        cpu_per_byte=reading_stage.cpu_per_record / record_bytes,
        record_bytes=record_bytes,
        piece_memory=stages.piece_memory,
    )


def _measure_latency(path: str) -> float:
    """Return the median time in seconds that a request for the first byte of a file takes."""
    storage = storage_for(path)
    seconds = []
    for _ in range(1 + _REQUEST_COUNT):
        begin = time.perf_counter()
        # Without `is_checked`, the storage would read the byte twice and compare.
        storage.read_range(path, 0, 1, is_checked=True)
        seconds.append(time.perf_counter() - begin)
    # The first request may make a connection and get a token.
    return statistics.median(seconds[1:])
