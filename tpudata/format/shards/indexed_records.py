"""Records of a shard by number, found through its index."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tpudata.errors import CorruptionError
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, UNPACKED, masked_crc32c
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.storage import storage_for

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def read_indexed(path: str, index: ShardIndex, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of the records first, ..., last - 1 of a shard, each checksum checked.

    A block of records is read at a time. With compression, offsets count unpacked bytes.

    Raises:
        CorruptionError: a record is damaged.
        StorageError: the file cannot be read.
    """
    offsets = index.offsets
    while first < last:
        stop = min((first // index.block_records + 1) * index.block_records, last)
        begin, end = int(offsets[first]), int(offsets[stop])
        if index.compression is None:
            data = storage_for(path).read_range(path, begin, end - begin)
            if len(data) < end - begin:
                raise CorruptionError(path, begin + len(data), f"the file ends inside a record (expected {end} bytes)")
        else:
            block = first // index.block_records
            data = read_block(path, index, block)[begin - index.block_range(block)[0] :]
        for record in range(first, stop):
            offset = int(offsets[record])
            yield offset, checked_data(data[offset - begin : int(offsets[record + 1]) - begin], path, offset)
        first = stop


def read_block(path: str, index: ShardIndex, block: int, *, is_checked: bool = False) -> bytes:
    """Read and unpack one block of a compressed shard.

    Args:
        path: path of the shard.
        index: index of the shard.
        block: number of the block, from 0.
        is_checked: as for `Storage.read_range`.

    Raises:
        CorruptionError: the block does not unpack.
        StorageError: the file cannot be read.
    """
    (start, stop), (first, last) = index.file_range(block), index.block_range(block)
    packed = storage_for(path).read_range(path, start, stop - start, is_checked=is_checked)
    try:
        return unpack_blocks(packed, last - first)
    except ValueError as error:
        raise CorruptionError(path, first, f"the block of the record does not unpack: {error}{UNPACKED}") from None


def checked_data(frame: bytes, path: str, offset: int) -> bytes:
    """Return the data of a record from its bytes in the shard, after comparing length and checksums.

    Raises:
        CorruptionError: they differ.
    """
    length, length_crc = _HEADER.unpack_from(frame)
    if masked_crc32c(frame[:8]) != length_crc or length != len(frame) - HEADER_BYTES - FOOTER_BYTES:
        raise CorruptionError(path, offset, "the length of a record does not match its checksum or the index")
    data = frame[HEADER_BYTES:-FOOTER_BYTES]
    if masked_crc32c(data) != _FOOTER.unpack_from(frame, len(frame) - FOOTER_BYTES)[0]:
        raise CorruptionError(path, offset, f"the checksum of a record of {length} bytes does not match")
    return data
