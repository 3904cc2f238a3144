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
from tpudata.format.tfrecord.framing import unpack_frame
from tpudata.source.byte_cache import ByteCache
from tpudata.source.chunk import CHUNK_BYTES, Chunk, LoadedChunk, Record, load_chunk
from tpudata.source.readers import Readers
from tpudata.storage import is_remote, storage_for

Integers: TypeAlias = "npt.NDArray[np.int64]"
_INDEX_CACHE_BYTES = 256 << 20
_BLOCK_CACHE_BYTES = 64 << 20
# Largest gap, in bytes, that is read with its neighbours: it costs less time and CPU than a request. On a disk, no gap is read.
_MAX_REMOTE_GAP = 256 << 10


class _Span(NamedTuple):
    """Records of one shard that one request reads.

    Attributes:
        shard_index: index of the shard in `ShardRecords.shards`.
        record_indices: indices of the records in the shard, ascending.
        result_indices: index of each record in the result of `ShardRecords.read`.
    """

    shard_index: int
    record_indices: list[int]
    result_indices: list[int]


class ShardRecords:
    """The records of a split, serialized; safe to share between threads, and to pickle.

    Args:
        dataset: the dataset.
        split: name of the split.

    Attributes:
        shards: shards that have records.
        runs: for each shard the runs of its records that are not in quarantine, [first, stop), int64 [runs, 2].

    Raises:
        DatasetError: the split does not exist, or it has no records.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._dataset = dataset
        self._split = split
        kept_counts = {shard.name: shard.records for shard in dataset.kept(split).shards}
        self.shards = [shard for shard in dataset.manifest.split(split).shards if shard.name in kept_counts]
        self.runs = [dataset.kept_runs(shard) for shard in self.shards]
        # Number of records up to the end of each shard, without records in quarantine.
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

    def index(self, shard_index: int) -> ShardIndex:
        """Return the index of the shard `shards[shard_index]`; its file is read when needed, and again once the cache drops it.

        Raises:
            CorruptionError: the index is damaged.
            DatasetError: the index belongs to another shard.
            StorageError: the file cannot be read.
        """
        return self._indexes.get(shard_index, lambda: self._dataset.index(self.shards[shard_index]), _count_index_bytes)

    def load(self, chunk: Chunk) -> LoadedChunk:
        """Read a chunk; raises what `index` and `load_chunk` raise."""
        return load_chunk(self._paths[chunk.shard_index], self.index(chunk.shard_index), chunk)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the index in `shards` of a record's shard, and the index of the record in the shard.

        Args:
            number: number of the record among the records of the split that are not in quarantine, from 0.
        """
        shard_index = bisect.bisect_right(self._ends, number)
        runs = self.runs[shard_index]
        record_index = number - (self._ends[shard_index - 1] if shard_index else 0)
        # Records in quarantine leave gaps. Unless a gap is before a kept record, `record_index` is already the index in the shard.
        has_gap_before = len(runs) > 1 or runs[0, 0] > 0
        if has_gap_before:
            record_index = int(_skip_quarantined(runs, np.array([record_index]))[0])
        return shard_index, record_index

    def read_one(self, number: int) -> Record:
        """Return one record; raises what `read` raises."""
        shard_index, record_index = self.locate(number)
        return self._read_span(_Span(shard_index, record_indices=[record_index], result_indices=[0]))[0]

    def read(self, numbers: Sequence[int]) -> list[Record]:
        """Return the records of `numbers`, in their order; each number must be at least 0, and less than the number of records.

        Raises:
            CorruptionError: a record or an index is damaged.
            DatasetError: an index belongs to another shard.
            StorageError: a file cannot be read.
        """
        records_by_result_index: dict[int, Record] = {}
        spans = list(self._group_spans(numbers))
        for span, records in zip(spans, self._read_spans(spans), strict=True):
            records_by_result_index.update(zip(span.result_indices, records, strict=True))
        return [records_by_result_index[index] for index in range(len(numbers))]

    def _read_spans(self, spans: list[_Span]) -> list[list[Record]]:
        """Return the records of each span; on an object store, spans are read concurrently."""
        if len(spans) == 1 or not self._is_remote:
            return [self._read_span(span) for span in spans]
        reads = [self._readers.submit(self._read_span, span) for span in spans]
        try:
            return [read.result() for read in reads]
        finally:
            # After an error, reads that have not started are not needed.
            for read in reads:
                read.cancel()

    def _group_spans(self, numbers: Sequence[int]) -> Iterator[_Span]:
        """Divide the records of `numbers` into spans: records of one shard that one request reads, in ascending order."""
        order = np.argsort(np.asarray(numbers, np.int64), kind="stable")
        ascending_numbers = np.asarray(numbers, np.int64)[order]
        # For each record, the index of its shard in `self.shards`.
        shard_indices = np.searchsorted(self._ends, ascending_numbers, "right")
        for shard_index in np.unique(shard_indices).tolist():
            first, stop = np.searchsorted(shard_indices, (shard_index, shard_index + 1)).tolist()
            numbers_in_shard = ascending_numbers[first:stop] - (self._ends[shard_index - 1] if shard_index else 0)
            record_indices = _skip_quarantined(self.runs[shard_index], numbers_in_shard)
            result_indices = order[first:stop].tolist()
            bounds = [0, *self._find_cuts(self.index(shard_index), record_indices), len(record_indices)]
            for begin, end in itertools.pairwise(bounds):
                yield _Span(shard_index, record_indices[begin:end].tolist(), result_indices[begin:end])

    def _find_cuts(self, index: ShardIndex, record_indices: Integers) -> list[int]:
        """Return the positions in `record_indices`, after 0, at which another request begins.

        Args:
            index: index of the shard.
            record_indices: indices of records in the shard, ascending.
        """
        if index.compression is not None:
            # Each block is read and cached separately.
            cuts: list[int] = (np.flatnonzero(np.diff(record_indices // index.block_records)) + 1).tolist()
            return cuts
        begins = index.offsets[record_indices].astype(np.int64).tolist()
        ends = index.offsets[record_indices + 1].astype(np.int64).tolist()
        # Reading the bytes between two records costs less than a request, but more than a second read of a disk.
        largest_gap = _MAX_REMOTE_GAP if self._is_remote else 0
        cuts = []
        request_begin = begins[0]
        for position in range(1, len(begins)):
            gap = begins[position] - ends[position - 1]
            if gap > largest_gap or ends[position] - request_begin > CHUNK_BYTES:
                cuts.append(position)
                request_begin = begins[position]
        return cuts

    def _read_span(self, span: _Span) -> list[Record]:
        """Return the records of a span; on an object store, a span with a damaged record is read a second time."""
        try:
            return self._read_span_once(span)
        except CorruptionError:
            if not self._is_remote:
                raise
            # Ranges of an object have no checksum, so bytes may have been damaged in transit: read once more.
            # The cache holds no damaged bytes.
            return self._read_span_once(span)

    def _read_span_once(self, span: _Span) -> list[Record]:
        """Read the records of a span once; CorruptionError if one is damaged."""
        index, path = self.index(span.shard_index), self._paths[span.shard_index]
        read_frames = self._read_frames if index.compression is None else self._read_compressed_frames
        offsets = index.offsets[span.record_indices].tolist()
        return [
            Record(unpack_frame(frame, path, offset), path, offset)
            for offset, frame in zip(offsets, read_frames(span, index, path), strict=True)
        ]

    def _read_frames(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        """Return the records of a span with their headers and footers, from one read of the file.

        Raises:
            CorruptionError: the file ends inside a record.
        """
        begin, end = int(index.offsets[span.record_indices[0]]), int(index.offsets[span.record_indices[-1] + 1])
        data = storage_for(path).read_range(path, begin, end - begin, is_checked=True)
        if len(data) < end - begin:
            raise CorruptionError(path, begin + len(data), f"the file ends inside a record (expected {end} bytes)")
        return [_cut_frame(data, begin, index, record_index) for record_index in span.record_indices]

    def _read_compressed_frames(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        """Return the records of a span with their headers and footers, from unpacked blocks, which are cached."""
        frames = []
        for record_index in span.record_indices:
            block_index = record_index // index.block_records
            read_block = functools.partial(read_blocks, path, index, block_index, block_index + 1, is_checked=True)
            data = self._blocks.get((span.shard_index, block_index), read_block, len)
            block_begin, _ = index.block_range(block_index)
            frames.append(_cut_frame(data, block_begin, index, record_index))
        return frames


def _cut_frame(data: bytes, begin: int, index: ShardIndex, record_index: int) -> bytes:
    """Return a record with its header and footer from bytes of its shard, which begin at offset `begin` before compression."""
    return data[int(index.offsets[record_index]) - begin : int(index.offsets[record_index + 1]) - begin]


def _skip_quarantined(runs: Integers, numbers: Integers) -> Integers:
    """Convert numbers that count only the records outside quarantine to indices in the shard: int64 [records].

    Args:
        runs: runs of the shard's records that are not in quarantine, [first, stop), int64 [runs, 2].
        numbers: number of each record, counted over these runs, int64 [records].
    """
    lengths = runs[:, 1] - runs[:, 0]
    ends = np.cumsum(lengths)
    run_indices = np.searchsorted(ends, numbers, "right")
    # A record's position in its run, added to the index of the run's first record.
    record_indices: Integers = numbers - (ends - lengths)[run_indices] + runs[run_indices, 0]
    return record_indices


def _count_index_bytes(index: ShardIndex) -> int:
    """Return the size in bytes of the index file, without its small parts; the arrays are views of the file's bytes."""
    return int(index.offsets.nbytes + index.block_crc32c.nbytes)
