"""The bytes of records by number: found through the indexes, read with few requests, checked."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tpudata.errors import CorruptionError
from tpudata.format import Dataset, ShardIndex
from tpudata.format.shards.indexed_records import checked_data, read_block
from tpudata.source.byte_cache import ByteCache
from tpudata.storage import is_remote, storage_for

_INDEX_CACHE_BYTES = 256 << 20
_BLOCK_CACHE_BYTES = 64 << 20
# Requests under way at once on an object store, where each takes some 50 ms.
_REMOTE_READERS = 32
# A gap up to this size is read with its neighbours, which is cheaper than a second request; a disk does not need this.
_REMOTE_GAP = 64 << 10
_LARGEST_REQUEST = 8 << 20


class Record(NamedTuple):
    """One serialized record and its place.

    Attributes:
        data: the record.
        path: the shard.
        offset: byte offset of its frame in the shard, before compression.
    """

    data: bytes
    path: str
    offset: int


class _Span(NamedTuple):
    """Records of one shard that one request reads.

    Attributes:
        shard: number of the shard in the split.
        records: numbers of the records in the shard, ascending.
        places: place of each of them in the result.
    """

    shard: int
    records: list[int]
    places: list[int]


class ShardRecords:
    """The records of a split, serialized; safe to share between threads, and to pickle.

    Args:
        dataset: the dataset.
        split: name of the split.

    Raises:
        DatasetError: there is no such split, or it has no records.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._dataset = dataset
        self._split = split
        kept = {shard.name: shard.records for shard in dataset.kept(split).shards}
        self._shards = [shard for shard in dataset.manifest.split(split).shards if shard.name in kept]
        self._ends = list(itertools.accumulate(kept.values()))
        self._kept = {
            n: dataset.kept_runs(shard) for n, shard in enumerate(self._shards) if kept[shard.name] < shard.records
        }
        self._paths = [dataset.shard_path(shard) for shard in self._shards]
        self._indexes: ByteCache[int, ShardIndex] = ByteCache(_INDEX_CACHE_BYTES)
        self._blocks: ByteCache[tuple[int, int], bytes] = ByteCache(_BLOCK_CACHE_BYTES)

    def __len__(self) -> int:
        """Return the number of records."""
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        # Caches are not pickled: a worker process reads what it needs.
        return {"dataset": self._dataset, "split": self._split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dataset"], state["split"])  # type: ignore[misc]

    def read(self, numbers: Sequence[int]) -> list[Record]:
        """Return records, in the order of `numbers`, each at least 0 and below `len`.

        Raises:
            CorruptionError: a record or an index is damaged.
            StorageError: a file cannot be read.
        """
        result: list[Record | None] = [None] * len(numbers)
        for span, records in self._read_spans(self._spans(numbers)):
            for place, record in zip(span.places, records, strict=True):
                result[place] = record
        return [record for record in result if record is not None]

    def _read_spans(self, spans: list[_Span]) -> list[tuple[_Span, list[Record]]]:
        if len(spans) == 1 or not is_remote(self._paths[0]):
            return [(span, self._read_span(span)) for span in spans]
        with ThreadPoolExecutor(min(_REMOTE_READERS, len(spans)), thread_name_prefix="tpudata-source") as pool:
            return list(zip(spans, pool.map(self._read_span, spans), strict=True))

    def _spans(self, numbers: Sequence[int]) -> list[_Span]:
        """Group records so that each group is read with one request."""
        spans: list[_Span] = []
        gap = _REMOTE_GAP if is_remote(self._paths[0]) else 0
        begin = end = 0
        for place in sorted(range(len(numbers)), key=numbers.__getitem__):
            number = numbers[place]
            shard = bisect.bisect_right(self._ends, number)
            record = number - (self._ends[shard - 1] if shard else 0)
            if shard in self._kept:
                runs = self._kept[shard]
                begins = np.cumsum(runs[:, 1] - runs[:, 0]) - (runs[:, 1] - runs[:, 0])
                run = int(np.searchsorted(begins, record, "right")) - 1
                record += int(runs[run, 0] - begins[run])
            start, stop = self._request(self._index(shard), record)
            joins = spans and spans[-1].shard == shard and start - end <= gap and stop - begin <= _LARGEST_REQUEST
            if not joins:
                spans.append(_Span(shard, [], []))
                begin = start
            end = stop
            spans[-1].records.append(record)
            spans[-1].places.append(place)
        return spans

    @staticmethod
    def _request(index: ShardIndex, record: int) -> tuple[int, int]:
        """Return the range [start, stop) in the shard's file that is read for a record."""
        if index.compression is None:
            return int(index.offsets[record]), int(index.offsets[record + 1])
        return index.file_range(record // index.block_records)

    def _index(self, shard: int) -> ShardIndex:
        return self._indexes.get(shard, lambda: self._dataset.index(self._shards[shard]), _index_bytes)

    def _read_span(self, span: _Span) -> list[Record]:
        try:
            return self._checked(span)
        except CorruptionError:
            if not is_remote(self._paths[span.shard]):
                raise
            # Ranges of an object have no checksum: intact bytes may be damaged in transit. Nothing damaged is in the cache.
            return self._checked(span)

    def _checked(self, span: _Span) -> list[Record]:
        index, path = self._index(span.shard), self._paths[span.shard]
        frames = self._frames(span, index, path) if index.compression is None else self._unpacked(span, index, path)
        return [
            Record(checked_data(frame, path, int(index.offsets[record])), path, int(index.offsets[record]))
            for record, frame in zip(span.records, frames, strict=True)
        ]

    def _frames(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        offsets = index.offsets
        start, stop = int(offsets[span.records[0]]), int(offsets[span.records[-1] + 1])
        data = storage_for(path).read_range(path, start, stop - start, is_checked=True)
        if len(data) < stop - start:
            raise CorruptionError(path, start + len(data), f"the file ends inside a record (expected {stop} bytes)")
        return [data[int(offsets[r]) - start : int(offsets[r + 1]) - start] for r in span.records]

    def _unpacked(self, span: _Span, index: ShardIndex, path: str) -> list[bytes]:
        frames = []
        for record in span.records:
            block = record // index.block_records
            read = functools.partial(read_block, path, index, block, is_checked=True)
            data = self._blocks.get((span.shard, block), read, len)
            first = index.block_range(block)[0]
            frames.append(data[int(index.offsets[record]) - first : int(index.offsets[record + 1]) - first])
        return frames


def _index_bytes(index: ShardIndex) -> int:
    # All arrays are views of the one file.
    return int(index.offsets.nbytes + index.block_crc32c.nbytes)
