"""Options of reading the files of a split."""

from __future__ import annotations

import dataclasses

from tpudata.checks import check_flag, check_integer, convert_integers

MEBIBYTE = 1 << 20
# Pieces that are being read take a quarter of the free memory at most.
_FREE_MEMORY_DIVISOR = 4


@dataclasses.dataclass(frozen=True)
class Reading:
    """Options of reading the files of a split: by default an object store in large pieces, a disk in small chunks.

    Every request of TensorFlow's client for `gs://` fetches a block, 64 MB unless it is configured, and costs a connection. So a
    split is read there in whole shards, and a larger shard in blocks of this size: each is one request or a few, and nothing is
    fetched twice. `streams` and `memory` change no batch; the other attributes change the order of training.

    Attributes:
        streams: number of pieces that are read at the same time; fewer if `memory` is too small for them.
        memory: bytes for the pieces that are being read; None for a quarter of the free memory.
        pieces: whether files are read in pieces; None reads only files of object stores in pieces. With True a copy on a disk is
            read in the same order as from an object store.
        piece_bytes: bytes of a piece; a shard's last one may have twice as many. Pieces that are smaller than TensorFlow's blocks
            fetch many bytes twice.
        lanes: maximum number of lanes, the parts of the permuted pieces from which each batch takes its rows. Their number divides
            the global batch, and is smaller for a small split.
        chunk_bytes: about the minimum bytes of a read if files are not read in pieces: a shuffle reads up to twice as many, and
            packed tokens, or any records in order, four times as many. Opening a file costs as much as reading 128 KiB, and larger
            reads mix less.

    Raises:
        UsageError: an attribute is out of range or of the wrong type.
    """

    streams: int = 32
    memory: int | None = None
    pieces: bool | None = None
    piece_bytes: int = 64 * MEBIBYTE
    lanes: int = 32
    chunk_bytes: int = MEBIBYTE // 2

    def __post_init__(self) -> None:
        for name in ("streams", "piece_bytes", "lanes", "chunk_bytes"):
            check_integer(f"Reading.{name}", getattr(self, name), 1)
        check_integer("Reading.memory", self.memory, 1, or_none=True)
        convert_integers(self, "streams", "piece_bytes", "lanes", "chunk_bytes", "memory")
        check_flag("Reading.pieces", self.pieces, or_none=True)

    def count_reads(self, piece_memory: int, free: int | None) -> int:
        """Return the number of pieces that are read at the same time, from 1 to `streams`: as many as the memory allows.

        Args:
            piece_memory: bytes of memory that a piece takes while it is read.
            free: free memory in bytes; pieces take a quarter of it if `memory` is None. None if unknown.
        """
        memory = self.memory
        if memory is None and free is not None:
            memory = free // _FREE_MEMORY_DIVISOR
        num_reads = self.streams if memory is None else min(self.streams, memory // max(1, piece_memory))
        return max(1, num_reads)
