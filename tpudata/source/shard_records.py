"""The bytes of records by number: found through the indexes, read with few requests, checked."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format import Dataset, ShardIndex
from tpudata.format.shards.indexed_records import read_blocks
from tpudata.format.tfrecord.framing import check_frame
from tpudata.source.byte_cache import ByteCache
from tpudata.source.chunk import CHUNK_BYTES, Chunk, LoadedChunk, Record, load_chunk
from tpudata.source.readers import Readers
from tpudata.storage import is_remote, storage_for

Integers: TypeAlias = "npt.NDArray[np.int64]"
_INDEX_CACHE_BYTES = 256 << 20
_BLOCK_CACHE_BYTES = 64 << 20
# Largest gap that is read with its neighbours: its bytes cost less time and CPU than a request. On a disk, no gap is worth reading.
_REMOTE_GAP = 256 << 10


class _Span(NamedTuple):
    """Records of one shard that one request reads.

    Attributes:
        shard: index of the shard in `ShardRecords.shards`.
        records: indices of the records in the shard, ascending.
        places: index of each of them in the result.
    """

    shard: int
    records: list[int]
    places: list[int]


class ShardRecords:
    """The records of a split, serialized; safe to share between threads, and to pickle.

    Args:
        dataset: the dataset.
        split: name of the split.

    Attributes:
        shards: shards that have records.
        runs: for each of them the runs of its records that are not in quarantine, [first, stop), int64 [runs, 2].

    Raises:
        DatasetError: there is no such split, or it has no records.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._dataset = dataset
        self._split = split
        kept_counts = {shard.name: shard.records for shard in dataset.kept(split).shards}
        self.shards = [shard for shard in dataset.manifest.split(split).shards if shard.name in kept_counts]
        self.runs = [dataset.kept_runs(shard) for shard in self.shards]
        self._ends = list(itertools.accumulate(kept_counts[shard.name] for shard in self.shards))
        self._paths = [dataset.shard_path(shard) for shard in self.shards]
        self._is_remote = is_remote(self._paths[0])
        self._indexes: ByteCache[int, ShardIndex] = ByteCache(_INDEX_CACHE_BYTES)
        self._blocks: ByteCache[tuple[int, int], bytes] = ByteCache(_BLOCK_CACHE_BYTES)
        self._readers = Readers()

    def __len__(self) -> int:
        """Return the number of records."""
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        # Caches are not pickled: a worker process reads what it needs.
        return {"dataset": self._dataset, "split": self._split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dataset"], state["split"])  # type: ignore[misc]

    @property
    def is_compressed(self) -> bool:
        """Whether the shards are compressed."""
        return self._dataset.manifest.compression is not None

    def index(self, shard: int) -> ShardIndex:
        """Return the `ShardIndex` of the shard at a position among `shards`; it is read when first needed.

        Raises:
            CorruptionError: it is damaged.
            DatasetError: it belongs to another shard.
            StorageError: it cannot be read.
        """
        return self._indexes.get(shard, lambda: self._dataset.index(self.shards[shard]), _count_index_bytes)

    def load(self, chunk: Chunk) -> LoadedChunk:
        """Read a chunk; raises what `index` and `load_chunk` raise."""
        return load_chunk(self._paths[chunk.shard], self.index(chunk.shard), chunk)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the position of the shard of a record among `shards`, and the number of the record in the shard."""
        shard = bisect.bisect_right(self._ends, number)
        runs = self.runs[shard]
        record = number - (self._ends[shard - 1] if shard else 0)
        if len(runs) > 1 or runs[0, 0]:
            record = int(_skip_quarantined(runs, np.array([record]))[0])
        return shard, record

    def read_one(self, number: int) -> Record:
        """Return one record; raises what `read` raises."""
        shard, record = self.locate(number)
        return self._read_span(_Span(shard, [record], [0]))[0]

    def read(self, numbers: Sequence[int]) -> list[Record]:
        """Return records, in the order of `numbers`, each at least 0 and below `len`.

        Raises:
            CorruptionError: a record or an index is damaged.
            StorageError: a file cannot be read.
        """
        records_read: list[Record | None] = [None] * len(numbers)
        spans = list(self._group_spans(numbers))
        for span, records in zip(spans, self._read_spans(spans), strict=True):
            for index, record in zip(span.places, records, strict=True):
                records_read[index] = record
        return [record for record in records_read if record is not None]

    def _read_spans(self, spans: list[_Span]) -> list[list[Record]]:
        """Read spans, those of a store concurrently."""
        if len(spans) == 1 or not self._is_remote:
            return [self._read_span(span) for span in spans]
        reads = [self._readers.submit(self._read_span, span) for span in spans]
        try:
            return [read.result() for read in reads]
        finally:
            for read in reads:
                read.cancel()

    def _group_spans(self, numbers: Sequence[int]) -> Iterator[_Span]:
        """Group records so that each group is read with one request."""
        record_numbers = np.asarray(numbers, np.int64)
        order = np.argsort(record_numbers, kind="stable")
        record_numbers = record_numbers[order]
        shards = np.searchsorted(self._ends, record_numbers, "right")
        for shard in np.unique(shards).tolist():
            first, stop = np.searchsorted(shards, (shard, shard + 1)).tolist()
            local = record_numbers[first:stop] - (self._ends[shard - 1] if shard else 0)
            records = _skip_quarantined(self.runs[shard], local).tolist()
            indices = order[first:stop].tolist()
            cuts = [0, *self._find_cuts(self.index(shard), np.array(records)), len(records)]
            for begin, end in itertools.pairwise(cuts):
                yield _Span(shard, records[begin:end], indices[begin:end])

    def _find_cuts(self, index: ShardIndex, records: Integers) -> list[int]:
        """Return the indices that divide ascending records of a shard into parts, each read with one request."""
        if index.compression is not None:
            # Each block is read and cached separately.
            return [int(cut) for cut in np.flatnonzero(np.diff(records // index.block_records)) + 1]
        starts = index.offsets[records].astype(np.int64)
        stops = index.offsets[records + 1].astype(np.int64)
        gaps, ends = (starts[1:] - stops[:-1]).tolist(), stops.tolist()
        largest_gap = _REMOTE_GAP if self._is_remote else 0
        cuts, begin = [], int(starts[0])
        for row, gap in enumerate(gaps, 1):
            if gap > largest_gap or ends[row] - begin > CHUNK_BYTES:
                cuts.append(row)
                begin = int(starts[row])
        return cuts

    def _read_span(self, span: _Span) -> list[Record]:
        """Read a span; of a store twice if the first read is damaged."""
        try:
            return self._read_checked(span)
        except CorruptionError:
            if not self._is_remote:
                raise
            # Ranges of an object have no checksum, so bytes may have been damaged in transit: read once more.
            # The cache holds no damaged bytes.
            return self._read_checked(span)

    def _read_checked(self, span: _Span) -> list[Record]:
        index, path = self.index(span.shard), self._paths[span.shard]
        frames = self._read_frames(span, index, path) if index.compression is None else self._unpack(span, index, path)
        return [
            Record(check_frame(frame, path, int(index.offsets[record])), path, int(index.offsets[record]))
            for record, frame in zip(span.records, frames, strict=True)
        ]

    def _read_frames(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        offsets = index.offsets
        start, stop = int(offsets[span.records[0]]), int(offsets[span.records[-1] + 1])
        data = storage_for(path).read_range(path, start, stop - start, is_checked=True)
        if len(data) < stop - start:
            raise CorruptionError(path, start + len(data), f"the file ends inside a record (expected {stop} bytes)")
        return [data[int(offsets[r]) - start : int(offsets[r + 1]) - start] for r in span.records]

    def _unpack(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        """Return the frames of a span, from the unpacked blocks that hold them."""
        frames = []
        for record in span.records:
            block = record // index.block_records
            read = functools.partial(read_blocks, path, index, block, block + 1, is_checked=True)
            data = self._blocks.get((span.shard, block), read, len)
            first = index.block_range(block)[0]
            frames.append(data[int(index.offsets[record]) - first : int(index.offsets[record + 1]) - first])
        return frames


def _skip_quarantined(runs: Integers, records: Integers) -> Integers:
    """Convert record numbers that omit quarantined records to ones that count all records of the shard."""
    lengths = runs[:, 1] - runs[:, 0]
    ends = np.cumsum(lengths)
    run = np.searchsorted(ends, records, "right")
    in_shard: Integers = records - (ends - lengths)[run] + runs[run, 0]
    return in_shard


def _count_index_bytes(index: ShardIndex) -> int:
    # All arrays are views of the one file.
    return int(index.offsets.nbytes + index.block_crc32c.nbytes)
