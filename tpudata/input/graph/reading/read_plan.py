"""Plan of reading: how many records are read together, and how many are shuffled together."""

from __future__ import annotations

import dataclasses

import numpy as np

from tpudata.format import Dataset, Split
from tpudata.input.graph.reading.pieces import Pieces
from tpudata.input.graph.reading.record_sizes import RecordSizes
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers, count_chunk_records
from tpudata.input.order.training import MAX_LANES, TrainingOrder, find_largest_divisor
from tpudata.input.text.sequence import TOKEN_ROWS

# Factor of the read size without a shuffle, and for rows of packed tokens, which conversion has mixed.
_LARGE_READ_FACTOR = 4
# Minimum number of chunks that training permutes: with fewer, a small window would mix little.
_MIN_CHUNKS = 256
# A lane's part of a block may begin inside a chunk; reading begins at the last read start before it. Without further read starts,
# 28 % of the bytes read are useless for records of 842 bytes, and 47 % for tokens. The table takes 48 bytes for each.
_READ_START_BYTES = 1 << 16
_MAX_READ_STARTS = 1 << 17
# Larger chunks are split. Photographs make none by chance: the largest chunk of ImageNet has 15 MB.
_MAX_CHUNK_BYTES = 32 << 20
# Without a shuffle, each host reads a run of records for each step, in this many chunks.
_CHUNKS_PER_HOST_STEP = 4
# The default shuffle window in bytes of stored records; its minimum number of records, and the maximum bytes that these may take.
_WINDOW_BYTES = 96 << 20
_MIN_WINDOW_RECORDS, _MAX_WINDOW_BYTES = 1024, 1 << 30
# Shards are even if the mean record sizes of the first one and of all differ by at most this factor.
_MAX_UNEVENNESS = 1.25


@dataclasses.dataclass(frozen=True, eq=False)
class ReadPlan:
    """Sizes of reads and of the shuffle's window, in records.

    Attributes:
        split: the split, without records in quarantine.
        record_bytes: usual size of a record, before compression.
        sizes: sizes of the records.
        block_records: records of a compressed block; None without compression.
        are_token_rows: whether records are rows of packed tokens.
        chunk_bytes: about the minimum bytes of a read in a shuffle, which reads up to twice as many; packed tokens, and any
            records in order, are read in chunks of four times as many.
        ids: record numbers of a subset, int64 [n], ascending: records are then numbered by their index in `ids`; None for all.
        pieces: pieces of all stored records; None unless they are read in pieces.
    """

    split: Split
    record_bytes: int
    sizes: RecordSizes
    block_records: int | None
    are_token_rows: bool
    chunk_bytes: int
    ids: Integers | None = None
    pieces: Pieces | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def make(cls, dataset: Dataset, split_name: str, chunk_bytes: int) -> ReadPlan:
        """Return the plan for all records of a split, from its first index and the indexes that `RecordSizes` needs."""
        split = dataset.kept(split_name)
        # The manifest's shard: the shard in `split` lacks the records in quarantine, and `Dataset.index` compares the counts.
        first_name = split.shards[0].name
        (first_shard,) = (shard for shard in dataset.manifest.split(split_name).shards if shard.name == first_name)
        index, sizes = dataset.index(first_shard), RecordSizes.read(dataset, split_name)
        record_bytes = max(1, int(index.offsets[-1]) // index.records)
        # If shards are even, the first one's mean is the record size: the mean of all would change the order of resumed trainings.
        if not sizes.mean / _MAX_UNEVENNESS <= record_bytes <= sizes.mean * _MAX_UNEVENNESS:
            record_bytes = sizes.mean
        block_records = None if index.compression is None else index.block_records
        are_token_rows = dataset.manifest.layout in TOKEN_ROWS
        return cls(split, record_bytes, sizes, block_records, are_token_rows, chunk_bytes)

    def select(self, ids: Integers) -> ReadPlan:
        """Return the plan for a subset of this plan's records; `ids` are record numbers of this plan."""
        return dataclasses.replace(self, ids=ids if self.ids is None else self.ids[ids])

    @property
    def count(self) -> int:
        """Number of records."""
        return self.split.records if self.ids is None else len(self.ids)

    @property
    def chunks(self) -> Chunks:
        """Chunks for reading in order."""
        return self._cut_chunks(self._pick_chunk_records(_LARGE_READ_FACTOR, min_chunks=1))

    @property
    def mixed_chunks(self) -> Chunks:
        """Chunks for a shuffle."""
        factor = _LARGE_READ_FACTOR if self.are_token_rows else 1
        return self._cut_chunks(self._pick_chunk_records(factor, _MIN_CHUNKS))

    @property
    def piece_memory(self) -> int | None:
        """Bytes of memory that a piece takes while it is read; None if files are not read in pieces."""
        return None

    @property
    def num_reads(self) -> int | None:
        """Number of pieces that are read at the same time; None if files are not read in pieces."""
        return None

    def reads_whole_batches(self, _: Rows) -> bool:
        """Return whether a host that reads in order reads whole batches, and then takes only its own rows of each.

        False here, without pieces; `PiecePlan` overrides it.
        """
        return False

    def find_pieces(self, records: Integers) -> Integers:
        """Return the index of the piece of each record number, int64 [n]."""
        assert self.pieces is not None
        # Pieces count all stored records; a plan for a subset has the record numbers of the subset in `ids`.
        stored = records if self.ids is None else self.ids[records]
        return np.searchsorted(self.pieces.firsts, stored, "right") - 1

    def compute_fetch_ratio(self, _batch_size: int, _num_hosts: int) -> float:
        """Return the mean number of bytes that all hosts together fetch in training for a byte of the split; 1 without pieces."""
        return 1.0

    def make_shuffled_order(self, batch_size: int, window_records: int, seed: int) -> TrainingOrder:
        """Return the order of training that shuffles within a window of fewer than all records.

        Args:
            batch_size: rows of the global batch.
            window_records: number of records that are permuted together.
            seed: seed, from 0 to 2**32 - 1.
        """
        return TrainingOrder.make(self.mixed_chunks, batch_size, window_records, seed)

    def choose_host_chunks(self, num_rows: int) -> Chunks:
        """Return chunks for a host that reads `num_rows` records a step; without compression, at most a quarter is read in vain."""
        return self._cut_chunks(max(1, num_rows // _CHUNKS_PER_HOST_STEP, self.block_records or 1))

    def find_read_starts(self, chunks: Chunks) -> Integers:
        """Return the record numbers at which reading can begin without reading earlier records, int64 [n]."""
        count, size = self.split.records, self.record_bytes
        # Besides the starts of the chunks, there are at most about _MAX_READ_STARTS, at least _READ_START_BYTES apart.
        length = count_chunk_records(count, size, max(_READ_START_BYTES, -(-count // _MAX_READ_STARTS) * size))
        return np.union1d(chunks.firsts, self._cut_chunks(max(length, self.block_records or 1)).firsts)

    def count_lanes(self, batch_size: int) -> int:
        """Return the number of lanes, which divides the batch size: parts of the permuted chunks from which a batch takes rows."""
        return find_largest_divisor(batch_size, MAX_LANES)

    @property
    def default_window(self) -> tuple[int, int, int]:
        """(bytes of the default window, its minimum number of records, the maximum bytes that these may take)."""
        return _WINDOW_BYTES, _MIN_WINDOW_RECORDS, _MAX_WINDOW_BYTES

    def count_window_records(self, shuffle_buffer: int | None, kept_bytes: int) -> int:
        """Return the number of records in the shuffle window.

        Args:
            shuffle_buffer: the requested number; None for the default.
            kept_bytes: bytes of a record in the window.
        """
        window = shuffle_buffer
        if window is None:
            # Decoded records may be larger than stored ones, which are read first: count the larger size.
            size = max(self.record_bytes, kept_bytes)
            # As many records as fit the default size, and at least `min_records`, unless these take more than `max_bytes`.
            window_bytes, min_records, max_bytes = self.default_window
            window = max(1, min(min_records, max_bytes // size), window_bytes // size)
        # A subset of the records gets its share of the window, rounded up.
        return -(-window * self.count // self.split.records)

    def _pick_chunk_records(self, factor: int, min_chunks: int) -> int:
        """Return the number of records in a chunk of about `factor * chunk_bytes` bytes, at least those of a compressed block.

        There are fewer if there would otherwise be fewer than `min_chunks` chunks.
        """
        chunk_records = count_chunk_records(
            self.split.records, self.record_bytes, self.chunk_bytes * factor, min_chunks
        )
        # Any record of a compressed block needs the whole block, so no chunk is shorter than one.
        return chunk_records if self.block_records is None else max(chunk_records, self.block_records)

    def _cut_chunks(self, length: int) -> Chunks:
        """Return the chunks of this plan's records, each cut from at most `length` stored records."""
        return self._select_chunks(
            self._split_large(Chunks.cut([shard.records for shard in self.split.shards], length))
        )

    def _select_chunks(self, chunks: Chunks) -> Chunks:
        """Return chunks of stored records as chunks of this plan's records, numbered by their index in `ids`."""
        if self.ids is None:
            return chunks
        firsts, stops = np.searchsorted(self.ids, chunks.firsts), np.searchsorted(self.ids, chunks.stops)
        # Chunks without a selected record are dropped.
        return Chunks(firsts[firsts < stops], stops[firsts < stops])

    def _split_large(self, chunks: Chunks) -> Chunks:
        """Split chunks above 32 MiB into reads of about twice `chunk_bytes`: large neighbouring records are then read one by one.

        The parts are permuted as chunks are, which keeps the bytes of a shuffle window near their mean.
        """
        begins, ends = self.sizes.sum_bytes_before(chunks.firsts), self.sizes.sum_bytes_before(chunks.stops)
        large_chunks = np.flatnonzero(ends - begins > _MAX_CHUNK_BYTES)
        cuts = [chunks.firsts]
        for first, stop, begin, end in zip(
            chunks.firsts[large_chunks],
            chunks.stops[large_chunks],
            begins[large_chunks],
            ends[large_chunks],
            strict=True,
        ):
            # A read is up to twice chunk_bytes. An offset inside a record counts as its start.
            new_cuts = self.sizes.find_records(np.arange(begin, end, 2 * self.chunk_bytes))
            # Compressed blocks are not cut.
            block_records = self.block_records or 1
            new_cuts = first + (new_cuts - first) // block_records * block_records
            cuts.append(new_cuts[(new_cuts > first) & (new_cuts < stop)])
        firsts = np.unique(np.concatenate(cuts))
        # Each chunk ends where the next one begins.
        return Chunks(firsts, np.append(firsts[1:], chunks.stops[-1:]))
