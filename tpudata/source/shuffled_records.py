"""The records of a split in shuffled order, read from a store in large chunks: for PyTorch, grain and plain loops."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from tpudata.checks import check_integer, is_integer
from tpudata.console.tables import count_text
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.format.shards.index import BLOCK_RECORDS
from tpudata.source.chunk import CHUNK_BYTES, Chunk, LoadedChunk, Record
from tpudata.source.chunk_order import ChunkOrder, ChunkTable, Window, WindowKey
from tpudata.source.readers import Readers
from tpudata.source.shard_records import ShardRecords

# Chunks are small enough that a window has about this number or more, which are read at the same time.
_MIN_CHUNKS = 32
# Late records, whose windows were dropped before a thread took them, are read one by one up to this number. The window of
# the next late record is read again; the first time, with a warning.
_MAX_LATE_RECORDS = 64
_log = logging.getLogger("tpudata")


class ShuffledRecords:
    """Records of a split in shuffled order; `RecordSource.shuffle` makes it, and describes the arguments.

    `shuffled[p]` is record number p of the order: first the host's records in the order of the first epoch, then its records in the
    order of the second, and so on.

    Read positions approximately in order: then every chunk is read once an epoch, and the next window is read while one is used;
    memory holds two windows, and a third one while several threads read at the end of a window.

    It can be pickled, shared between threads, and used in forked processes. Threads end when it is dropped.
    """

    def __init__(
        self,
        records: ShardRecords,
        decode: Callable[[Record], Any],
        *,
        seed: int,
        epochs: int,
        host_index: int,
        host_count: int,
        workers: int,
        batch_size: int,
        window_bytes: int,
    ) -> None:
        options = {
            "seed": seed,
            "epochs": epochs,
            "host_index": host_index,
            "host_count": host_count,
            "workers": workers,
            "batch_size": batch_size,
            "window_bytes": window_bytes,
        }
        for name, value in options.items():
            check_integer(name, value, 0 if name in ("seed", "host_index") else 1)
        # Python's integers: numpy's would wrap around when they are multiplied.
        self._options = {name: operator.index(value) for name, value in options.items()}
        host_index, host_count = self._options["host_index"], self._options["host_count"]
        if host_index >= host_count:
            raise UsageError(
                f"host_index={host_index}: expected less than host_count={host_count}. Pass the index of this host, from 0."
            )
        self._records = records
        self._decode = decode
        # Chunks are smaller for a small window, which otherwise would hold too few to mix and to read at the same time.
        window_bytes = self._options["window_bytes"]
        table = _make_chunk_table(records, min(CHUNK_BYTES, max(1, window_bytes // _MIN_CHUNKS)))
        # Mean size of a chunk.
        chunk_bytes = sum(shard.bytes for shard in records.shards) / len(table.record_counts)
        self._order = ChunkOrder(
            table,
            seed=self._options["seed"],
            epochs=self._options["epochs"],
            host_index=host_index,
            host_count=host_count,
            lane_count=self._options["workers"],
            turn_length=self._options["batch_size"],
            max_window_chunks=max(1, round(window_bytes / chunk_bytes)),
        )
        if not self._order.epoch_record_count:
            raise UsageError(
                f"host_count={host_count}: the split has {count_text(len(records), 'record')}, none for host {host_index}. Pass"
                " fewer hosts."
            )
        self._reset()

    def __len__(self) -> int:
        """Return the number of records of this host, in all epochs."""
        return self._order.epoch_record_count * self._options["epochs"]

    def __getitem__(self, position: int) -> Any:
        """Return the record of a position; negative positions count from the end.

        Raises:
            TypeError: the position is not an integer.
            IndexError: there is no record at this position.
            CorruptionError: the record is damaged; the message names file and offset.
            DatasetError: the shard's index belongs to another shard.
            FeatureError: the features of the record differ from the manifest's.
            StorageError: the shard or its index cannot be read.
        """
        if not is_integer(position):
            raise TypeError(f"{self!r} takes positions (got {position!r}). Use __getitems__ for several.")
        count = len(self)
        if not -count <= position < count:
            raise IndexError(f"{self!r}: no position {format_value(position)} (expected {-count} to {count - 1}).")
        return self._decode(self._read_record(int(position) % count))

    def __getitems__(self, positions: Iterable[int]) -> list[Any]:
        """Return the records of several positions, as PyTorch's DataLoader asks for them; raises what `shuffled[p]` raises."""
        return [self[position] for position in positions]

    def __iter__(self) -> Iterator[Any]:
        """Yield the records of all epochs."""
        return (self[position] for position in range(len(self)))

    def __repr__(self) -> str:
        # Grain compares this string in a checkpoint with the string in the run that restores the checkpoint.
        options = ", ".join(f"{name}={value}" for name, value in self._options.items())
        return f"ShuffledRecords(records={len(self._records)}, {options})"

    def __getstate__(self) -> dict[str, Any]:
        # Windows and threads are not pickled: a worker process makes its own.
        return {"records": self._records, "decode": self._decode, **self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _reset(self) -> None:
        """Begin with no windows in memory, in a new object or in a forked process."""
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._readers = Readers()
        # By lane (a worker process's part of an epoch, see `ChunkOrder`), the windows in memory, in order: at most the window
        # before the current one, the current one, and the next one.
        self._lanes: dict[int, _Lane] = {}
        # Number of late records, which were requested after their window was dropped, and whether a warning was logged.
        self._late_count = 0
        self._has_warned = False

    def _read_record(self, position: int) -> Record:
        """Return the record of a position, from its window or read alone."""
        if self._owner_pid != os.getpid():
            # The threads, and perhaps the owner of the lock, are in the parent.
            self._reset()
        key, index = self._order.locate(position)
        with self._lock:
            is_read_alone = self._accept_late_record(key, index)
            loading = None if is_read_alone else self._open_window(key)
        if loading is None:
            return self._read_alone(key, index)
        try:
            chunk = loading.chunks[int(loading.window.chunk_indices[index])].result()
        except BaseException:
            # Drop the lane's windows, so that the next call reads them again.
            with self._lock:
                self._lanes.pop(key.lane, None)
            raise
        record = chunk.get_record(int(loading.window.record_indices[index]))
        with self._lock:
            # Drop the window after its last record.
            loading.remaining_count -= 1
            if not loading.remaining_count and key.lane in self._lanes:
                self._lanes[key.lane].pop(key, None)
        return record

    def _open_window(self, key: WindowKey) -> _LoadingWindow:
        """Return a window of a lane, and start to read the next one; the caller holds the lock."""
        lane = self._lanes.setdefault(key.lane, {})
        # The first window, or a jump: the windows in memory are no longer read.
        if key not in lane:
            lane.clear()
            lane[key] = self._load_window(key)
        is_newest = key == next(reversed(lane))
        if is_newest:
            # Threads may still read the window before this one, but no earlier window.
            for passed_key in list(lane)[:-2]:
                del lane[passed_key]
            next_key = self._order.find_following(key)
            if next_key:
                lane[next_key] = self._load_window(next_key)
        return lane[key]

    def _accept_late_record(self, key: WindowKey, index: int) -> bool:
        """Return whether to read a record alone because its window was dropped, and count it; the caller holds the lock.

        After each `_MAX_LATE_RECORDS` late records it returns False, so that the window is read again; the first time, it warns.
        """
        lane = self._lanes.get(key.lane)
        # Only windows before the oldest in memory were dropped. A read of a dropped window's first record is a jump back, such as
        # to a new pass: it loads the whole window.
        if not lane or key >= next(iter(lane)) or index == 0:
            return False
        self._late_count += 1
        if self._late_count % (_MAX_LATE_RECORDS + 1):
            return True
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%r: windows are read again and again, since positions are not read in order. Read fewer of them at the same"
                " time, or pass a larger window_bytes.",
                self,
            )
        return False

    def _read_alone(self, key: WindowKey, index: int) -> Record:
        """Read a record of a window without the window's chunks."""
        window = self._order.make_window(key)
        chunk = window.chunks[window.chunk_indices[index]]
        record_index = chunk.first + int(window.record_indices[index])
        return self._records.load(Chunk(chunk.shard_index, record_index, record_index + 1)).get_record(0)

    def _load_window(self, key: WindowKey) -> _LoadingWindow:
        """Return a window after starting to read its chunks."""
        return _LoadingWindow(self._order.make_window(key), self._readers, self._records)


class _LoadingWindow:
    """A window whose chunks are being read.

    Args:
        window: the window to read.
        readers: threads that read its chunks.
        records: records of the split.

    Attributes:
        window: the window, whose chunks and order locate its records.
        chunks: records of the window's chunks, as they arrive.
        remaining_count: number of records that have not been taken.
    """

    def __init__(self, window: Window, readers: Readers, records: ShardRecords) -> None:
        self.window = window
        self.chunks: list[Future[LoadedChunk]] = [readers.submit(records.load, chunk) for chunk in window.chunks]
        self.remaining_count = len(window.chunk_indices)


_Lane = dict[WindowKey, _LoadingWindow]


def _make_chunk_table(records: ShardRecords, chunk_bytes: int) -> ChunkTable:
    """Cut all shards, without records in quarantine, into chunks of about `chunk_bytes` bytes of the file.

    Indexes are not read for this, so the chunks of a run have about equal record counts, whatever the sizes of the records.
    """
    # Compressed shards are read in whole blocks of records.
    step = BLOCK_RECORDS if records.is_compressed else 1
    shard_indices, first_indices, record_counts = [], [], []
    for shard_index, (shard, runs) in enumerate(zip(records.shards, records.runs, strict=True)):
        for first, stop in runs.tolist():
            run_bytes = (stop - first) * shard.bytes / shard.records
            chunk_count = max(1, round(run_bytes / chunk_bytes))
            bounds = first + (stop - first) * np.arange(chunk_count + 1) // chunk_count
            bounds[1:-1] = np.clip(np.round(bounds[1:-1] / step) * step, first, stop)
            # Bounds that were rounded to the same block would make empty chunks.
            bounds = np.unique(bounds)
            shard_indices.append(np.full(len(bounds) - 1, shard_index))
            first_indices.append(bounds[:-1])
            record_counts.append(np.diff(bounds))
    columns = (shard_indices, first_indices, record_counts)
    return ChunkTable(*(np.concatenate(arrays).astype(np.int64) for arrays in columns))
