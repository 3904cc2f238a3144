"""Plan of reading: the numbers of records that are read at once and shuffled together."""

from __future__ import annotations

import dataclasses

import numpy as np

from tpudata.format import Dataset, Split
from tpudata.input.graph.reading.pieces import Pieces
from tpudata.input.graph.reading.record_sizes import RecordSizes
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers, chunk_records
from tpudata.input.order.training import MOST_LANES, TrainingOrder, largest_divisor
from tpudata.input.text.sequence import TOKEN_ROWS

# Bytes of a read, up to twice that: opening a file costs as much as reading a quarter of it, and larger reads mix less.
_READ_BYTES = 1 << 19
# Factor in evaluation, which mixes nothing, and for rows of packed tokens, which were mixed when they were made.
_LARGE_READS = 4
# Least number of chunks that training permutes: with fewer, a small window would mix little.
_LEAST_CHUNKS = 256
# A lane's part of a block begins anywhere in a chunk, and reading begins at the last of these places before it: with chunks alone,
# 28 % of the bytes read were useless for records of 842 bytes, and 47 % for tokens. The table takes 48 bytes a place.
_SEEK_BYTES = 1 << 16
_MOST_SEEKS = 1 << 17
# A chunk of more bytes is cut into reads of the usual size. Chance makes none of photographs: the largest of ImageNet has 15 MB.
_MOST_CHUNK_BYTES = 32 << 20
# Without a shuffle, each host reads a run of records a step, in this many parts.
_PARTS_PER_HOST = 4
# The default window of the shuffle, in bytes of stored records, and its least length in records, if they take no more than so many
# bytes.
_WINDOW_BYTES = 96 << 20
_WINDOW_RECORDS, _MOST_WINDOW_BYTES = 1024, 1 << 30
# The first shard has records of the usual size if their mean is at most this many times that of all, or the other way around.
_MOST_UNEVEN = 1.25


@dataclasses.dataclass(frozen=True, eq=False)
class ReadPlan:
    """Sizes of reads and of the shuffle's window, in records.

    Attributes:
        split: the split, without records in quarantine.
        record_bytes: usual size of a record, before compression.
        sizes: size of each.
        block_records: records of a compressed block; None without compression.
        are_token_rows: whether records are rows of packed tokens.
        ids: numbers of some of the records, int64 [n], ascending; None for all. Records are then numbered among these.
        pieces: pieces of all stored records, if they are read in such.
    """

    split: Split
    record_bytes: int
    sizes: RecordSizes
    block_records: int | None
    are_token_rows: bool
    ids: Integers | None = None
    pieces: Pieces | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def of(cls, dataset: Dataset, split_name: str) -> ReadPlan:
        """Return the plan for all records of a split, from the indexes of its shards."""
        split = dataset.kept(split_name)
        (first,) = (s for s in dataset.manifest.split(split_name).shards if s.name == split.shards[0].name)
        index, sizes = dataset.index(first), RecordSizes.of(dataset, split_name)
        record_bytes = max(1, int(index.offsets[-1]) // index.records)
        # The first shard decides if shards are even: the mean of all, a little larger or smaller, would give another order than
        # earlier versions.
        if not sizes.mean / _MOST_UNEVEN <= record_bytes <= sizes.mean * _MOST_UNEVEN:
            record_bytes = sizes.mean
        block_records = None if index.compression is None else index.block_records
        return cls(split, record_bytes, sizes, block_records, dataset.manifest.layout in TOKEN_ROWS)

    def part(self, ids: Integers) -> ReadPlan:
        """Return the plan for some of these records, by their numbers among them."""
        return dataclasses.replace(self, ids=ids if self.ids is None else self.ids[ids])

    @property
    def count(self) -> int:
        """Number of records."""
        return self.split.records if self.ids is None else len(self.ids)

    @property
    def chunks(self) -> Chunks:
        """Chunks for reading in order."""
        return self._cut_chunks(self._pick_length(_LARGE_READS, 1))

    @property
    def mixed_chunks(self) -> Chunks:
        """Chunks for a shuffle."""
        return self._cut_chunks(self._pick_length(_LARGE_READS if self.are_token_rows else 1, _LEAST_CHUNKS))

    @property
    def piece_memory(self) -> int | None:
        """Bytes of memory that a piece takes while it is read; None without pieces."""
        return None

    @property
    def reads(self) -> int | None:
        """Number of pieces that are read at the same time; None without pieces."""
        return None

    def reads_all(self, _: Rows) -> bool:
        """Return whether a host that reads in order reads whole batches and keeps its rows of them."""
        return False

    def pieces_of(self, records: Integers) -> Integers:
        """Return the numbers of the pieces that have records, by their numbers, int64 [n]."""
        assert self.pieces is not None
        stored = records if self.ids is None else self.ids[records]
        return np.searchsorted(self.pieces.starts, stored, "right") - 1

    def fetch_ratio(self, _batch_size: int, _hosts: int) -> float:
        """Return the bytes that all hosts together fetch in training, for each byte of the split, on average."""
        return 1.0

    def shuffled_order(self, total: int, window: int, seed: int) -> TrainingOrder:
        """Return the order of training that mixes the records of a window, fewer than all.

        Args:
            total: rows of the global batch.
            window: records that are permuted together.
            seed: seed, from 0 to 2**32 - 1.
        """
        return TrainingOrder.of(self.mixed_chunks, total, window, seed)

    def chunks_of_host(self, rows: int) -> Chunks:
        """Return chunks for a host that reads a run of `rows` records a step, at most a quarter of which is useless."""
        return self._cut_chunks(max(1, rows // _PARTS_PER_HOST, self.block_records or 1))

    def seeks(self, chunks: Chunks) -> Integers:
        """Return the numbers of records at which reading can begin without reading those before them, int64 [n]."""
        count, size = self.split.records, self.record_bytes
        length = chunk_records(count, size, max(_SEEK_BYTES, -(-count // _MOST_SEEKS) * size))
        return np.union1d(chunks.starts, self._cut_chunks(max(length, self.block_records or 1)).starts)

    def lanes(self, batch_size: int) -> int:
        """Return the number of places of the permuted chunks from which a batch takes its rows."""
        return largest_divisor(batch_size, MOST_LANES)

    @property
    def default_window(self) -> tuple[int, int, int]:
        """The default window in bytes; its least records, and the bytes that these may take."""
        return _WINDOW_BYTES, _WINDOW_RECORDS, _MOST_WINDOW_BYTES

    def window(self, shuffle_buffer: int | None, kept_bytes: int) -> int:
        """Return the number of records that are mixed.

        Args:
            shuffle_buffer: the requested number; None for the default.
            kept_bytes: size of a record in the window.
        """
        if shuffle_buffer is None:
            size = max(self.record_bytes, kept_bytes)
            window_bytes, records, most_bytes = self.default_window
            shuffle_buffer = max(1, min(records, most_bytes // size), window_bytes // size)
        # A part of the records has its share of the window.
        return -(-shuffle_buffer * self.count // self.split.records)

    def _pick_length(self, reads: int, least: int) -> int:
        """Return the records of a chunk of `reads` reads, fewer if there would be less than the least number of chunks."""
        length = chunk_records(self.split.records, self.record_bytes, _READ_BYTES * reads, least)
        # Any record of a compressed block needs the whole block.
        return length if self.block_records is None else max(length, self.block_records)

    def _cut_chunks(self, length: int) -> Chunks:
        """Return the records in chunks of a number of stored ones."""
        return self._select(self._cut(Chunks.of([shard.records for shard in self.split.shards], length)))

    def _select(self, chunks: Chunks) -> Chunks:
        """Return the part of chunks that `ids` has."""
        if self.ids is None:
            return chunks
        starts, stops = np.searchsorted(self.ids, chunks.starts), np.searchsorted(self.ids, chunks.stops)
        return Chunks(starts[starts < stops], stops[starts < stops])

    def _cut(self, chunks: Chunks) -> Chunks:
        """Return the chunks, those of many bytes cut into pieces: so large records, where they stand together, are read one by one.

        The pieces are permuted as chunks are, which spreads them over an epoch and keeps the bytes of a window near its mean.
        """
        begins, ends = self.sizes.before(chunks.starts), self.sizes.before(chunks.stops)
        large = np.flatnonzero(ends - begins > _MOST_CHUNK_BYTES)
        cuts = [chunks.starts]
        for start, stop, begin, end in zip(
            chunks.starts[large], chunks.stops[large], begins[large], ends[large], strict=True
        ):
            # A place between two records belongs to the one before it.
            cut_places = self.sizes.at(np.arange(begin, end, 2 * _READ_BYTES))
            block = self.block_records or 1
            cut_places = start + (cut_places - start) // block * block
            cuts.append(cut_places[(cut_places > start) & (cut_places < stop)])
        starts = np.unique(np.concatenate(cuts))
        return Chunks(starts, np.append(starts[1:], chunks.stops[-1:]))
