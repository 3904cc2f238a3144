"""Plan of reading from an object store, in pieces."""

from __future__ import annotations

import dataclasses

from tpudata.format import Dataset
from tpudata.input.graph.reading.free_memory import measure_free_memory
from tpudata.input.graph.reading.pieces import Pieces
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.options.hosts import Rows
from tpudata.input.options.reading import Reading
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.streams import StreamOrder
from tpudata.input.order.training import find_largest_divisor
from tpudata.storage import is_remote

# The default shuffle window in bytes of stored records; its minimum number of records, and the maximum bytes that these may take.
# A host of a TPU has 48 GB or more.
_WINDOW_BYTES = 512 << 20
_MIN_WINDOW_RECORDS, _MAX_WINDOW_BYTES = 2048, 1 << 30
# Share of the bytes that may be fetched twice because lanes end inside of pieces.
_MAX_WASTE = 0.03
# Bytes of a run: the records of a slot that are passed on together.
_RUN_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class PiecePlan(ReadPlan):
    """Plan for an object store.

    Attributes:
        pieces: pieces of all stored records.
        reading: options of reading.
    """

    pieces: Pieces = dataclasses.field(kw_only=True)
    reading: Reading = dataclasses.field(kw_only=True)

    @property
    def chunks(self) -> Chunks:
        """Pieces for reading in order."""
        return self._select_chunks(Chunks(self.pieces.firsts, self.pieces.stops))

    @property
    def mixed_chunks(self) -> Chunks:
        """Pieces for a shuffle."""
        return self.chunks

    def count_lanes(self, batch_size: int) -> int:
        """Return the number of lanes, which divides the batch.

        There are at most `reading.lanes`, and so few that pieces shared by lanes waste at most 3 % of the bytes.
        """
        sizes = self.pieces.ends - self.pieces.begins
        # The lanes have `lanes - 1` bounds, each inside a piece, which is then read in two parts.
        # By default a piece has the size of a block of TensorFlow's client, the minimum that a read fetches.
        bytes_per_cut = self.pieces.estimate_wasted_bytes(self.reading.piece_bytes)
        max_lanes = batch_size
        if bytes_per_cut:
            max_lanes = int(_MAX_WASTE * float(sizes.sum()) / bytes_per_cut) + 1
        return find_largest_divisor(batch_size, min(max_lanes, self.reading.lanes))

    def compute_fetch_ratio(self, batch_size: int, num_hosts: int) -> float:
        """Return the mean number of bytes that all hosts together fetch in training for each byte of the split."""
        num_lanes, rows_per_host = self.count_lanes(batch_size), batch_size // num_hosts
        # Row r of a batch belongs to slot r // turns_per_step, and each slot reads one lane in an epoch.
        turns_per_step = batch_size // num_lanes
        # Each host reads the lanes of its rows, so hosts that share a lane read its pieces several times.
        num_lane_reads = 0
        for host in range(num_hosts):
            first_lane = host * rows_per_host // turns_per_step
            stop_lane = -(-(host + 1) * rows_per_host // turns_per_step)
            num_lane_reads += stop_lane - first_lane
        reads_per_piece = num_lane_reads / num_lanes
        # Pieces in which a lane ends are read in two parts, as `count_lanes` assumes.
        sizes = self.pieces.ends - self.pieces.begins
        bytes_per_cut = self.pieces.estimate_wasted_bytes(self.reading.piece_bytes)
        return reads_per_piece * (1 + (num_lanes - 1) * bytes_per_cut / float(sizes.sum()))

    @property
    def default_window(self) -> tuple[int, int, int]:
        """(bytes of the default window, its minimum number of records, the maximum bytes that these may take)."""
        return _WINDOW_BYTES, _MIN_WINDOW_RECORDS, _MAX_WINDOW_BYTES

    def make_shuffled_order(self, batch_size: int, window_records: int, seed: int) -> StreamOrder:
        """Return the order of training in streams that shuffles within a window of fewer than all records."""
        num_lanes = self.count_lanes(batch_size)
        max_run_records = _RUN_BYTES // self.record_bytes
        return StreamOrder.with_lanes(
            self.mixed_chunks, batch_size, window_records, seed, num_lanes=num_lanes, max_run_records=max_run_records
        )

    @property
    def piece_memory(self) -> int:
        """Mean bytes of memory that a piece takes: as fetched, as records, and if it is compressed also unpacked."""
        num_copies = 1 if self.block_records is None else 2
        return self.pieces.mean_bytes + num_copies * (self.sizes.total_bytes // len(self.pieces.firsts))

    @property
    def num_reads(self) -> int:
        """Number of pieces that are read at the same time, limited by `Reading.memory` or the free memory."""
        return self.reading.count_reads(self.piece_memory, measure_free_memory())

    def reads_whole_batches(self, rows: Rows) -> bool:
        """Return whether a host reads whole batches in order: if its rows take less than a piece, which other hosts also need."""
        return rows.count < rows.total and rows.count * self.record_bytes < self.reading.piece_bytes


def is_read_in_pieces(dataset: Dataset, split: str, reading: Reading) -> bool:
    """Return whether a split is read in pieces: as the options choose, or by default if it is on an object store."""
    first_shard = dataset.shard_path(dataset.manifest.split(split).shards[0])
    return is_remote(first_shard) if reading.pieces is None else reading.pieces


def plan_reading(dataset: Dataset, split: str, reading: Reading) -> ReadPlan:
    """Return the plan for all records of a split."""
    plan = ReadPlan.make(dataset, split, reading.chunk_bytes)
    if not is_read_in_pieces(dataset, split, reading):
        return plan
    pieces = Pieces.cut(dataset, split, reading.piece_bytes)
    # `dataclasses.asdict` would also turn nested dataclasses into dicts.
    plan_fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return PiecePlan(**{**plan_fields, "pieces": pieces}, reading=reading)
