"""Records and blocks of a shard, found through its index."""

from __future__ import annotations

from collections.abc import Iterator

from tpudata.errors import CorruptionError
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import UNPACKED, unpack_frame
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.storage import storage_for


def read_indexed(path: str, index: ShardIndex, first_record: int, stop_record: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of consecutive records of a shard, each checksum checked.

    One block of records is read at a time. With compression, offsets count unpacked bytes.

    Args:
        path: path of the shard.
        index: index of the shard.
        first_record: index of the first record.
        stop_record: index of the record after the last one.

    Raises:
        CorruptionError: a record is damaged.
        StorageError: the file cannot be read.
    """
    offsets = index.offsets
    # Each run is the part of the records that is in one block.
    run_first = first_record
    while run_first < stop_record:
        block_index = run_first // index.block_records
        run_stop = min((block_index + 1) * index.block_records, stop_record)
        begin, end = int(offsets[run_first]), int(offsets[run_stop])
        if index.compression is None:
            data = storage_for(path).read_range(path, begin, end - begin)
            if len(data) < end - begin:
                raise CorruptionError(path, begin + len(data), f"the file ends inside a record (expected {end} bytes)")
        else:
            block_begin, _ = index.block_range(block_index)
            data = read_blocks(path, index, block_index, block_index + 1)[begin - block_begin :]
        for record_index in range(run_first, run_stop):
            offset = int(offsets[record_index])
            yield offset, unpack_frame(data[offset - begin : int(offsets[record_index + 1]) - begin], path, offset)
        run_first = run_stop


def read_blocks(path: str, index: ShardIndex, first_block: int, stop_block: int, *, is_checked: bool = False) -> bytes:
    """Return the unpacked bytes of consecutive blocks of a compressed shard, read with one request.

    Args:
        path: path of the shard.
        index: index of the shard.
        first_block: index of the first block.
        stop_block: index of the block after the last one.
        is_checked: whether the caller compares the bytes with checksums; otherwise object stores read the range twice and compare.

    Raises:
        CorruptionError: a block does not unpack.
        StorageError: the file cannot be read.
    """
    first_begin, _ = index.file_range(first_block)
    _, last_end = index.file_range(stop_block - 1)
    compressed_data = storage_for(path).read_range(path, first_begin, last_end - first_begin, is_checked=is_checked)
    blocks = []
    for block_index in range(first_block, stop_block):
        file_begin, file_end = index.file_range(block_index)
        begin, end = index.block_range(block_index)
        try:
            blocks.append(
                unpack_blocks(compressed_data[file_begin - first_begin : file_end - first_begin], end - begin)
            )
        except ValueError as error:
            reason = f"the block of the record does not unpack: {error}{UNPACKED}"
            raise CorruptionError(path, begin, reason) from None
    return b"".join(blocks)
