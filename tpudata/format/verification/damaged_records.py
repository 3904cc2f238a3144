"""Search for the records of a damaged shard that cannot be read or do not match the manifest."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from tpudata.errors import CorruptionError, DatasetError, StorageError, StorageUnavailableError
from tpudata.format.dataset import Dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, Shard
from tpudata.format.quarantine import QUARANTINE_NAME, LeftOut, Quarantine, ShardQuarantine
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, masked_crc32c
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ExampleCheck, ShardCheck
from tpudata.format.verification.shard_walk import Problems
from tpudata.storage import storage_for

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def quarantine_damage(
    folder: str, defects: Iterable[Defect], example_check: ExampleCheck | None
) -> tuple[Quarantine, list[Defect]]:
    """Write the list of records for readers to skip: all that are damaged, and no other.

    Args:
        folder: the dataset's.
        defects: all that `verify` found.
        example_check: that of `verify`.

    Returns:
        What was written, and the defects that keep readers from the dataset still.

    Raises:
        DatasetError: the manifest cannot be read.
        StorageError: a file cannot be read or written.
    """
    storage = storage_for(folder)
    manifest_path, path = storage.join(folder, MANIFEST_NAME), storage.join(folder, QUARANTINE_NAME)
    manifest = Manifest.from_bytes(storage.read(manifest_path), manifest_path)
    dataset, check = Dataset(folder, manifest), ShardCheck(folder, manifest, example_check)
    shards = {dataset.shard_path(shard): shard for split in manifest.splits.values() for shard in split.shards}
    found, left, unknown = {}, [], set()
    for defect in defects:
        shard = shards.get(defect.path)
        if shard is not None and shard.name not in found and shard.name not in unknown:
            try:
                found[shard.name] = quarantine_of(defect.path, shard, dataset.index(shard), check.problems)
            except (CorruptionError, DatasetError):
                unknown.add(shard.name)
            except StorageUnavailableError:
                raise
            except StorageError:
                unknown.add(shard.name)
        if defect.path != path and (shard is None or shard.name in unknown):
            left.append(defect)
    quarantine = Quarantine(found)
    if found:
        with storage.create(path) as file:
            file.write(quarantine.to_bytes())
    elif storage.stat(path) is not None:
        storage.delete(path)
    return quarantine, left


def quarantine_of(path: str, shard: Shard, index: ShardIndex, problems: Problems) -> ShardQuarantine:
    """Read a shard block by block, and return the records to skip.

    Memory holds one block of records.

    Args:
        path: of the shard's file.
        shard: what the manifest says of it.
        index: of the shard.
        problems: what is wrong with the content of a record, in words.

    Raises:
        StorageError: the file is there, and cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    if entry is None:
        return ShardQuarantine(shard.crc32c, 0, (LeftOut(0, shard.records, "the shard is missing"),))
    with storage.open(path) as file:
        found = [
            left_out for block in range(index.blocks) for left_out in _of_block(path, file, index, block, problems)
        ]
    return ShardQuarantine(shard.crc32c, entry.size, tuple(_joined(found)))


def _of_block(path: str, file: BinaryIO, index: ShardIndex, block: int, problems: Problems) -> Iterator[LeftOut]:
    """Read the next block of a shard and yield the records to skip."""
    first = block * index.block_records
    last = min(first + index.block_records, index.records)
    (begin, end), (start, stop) = index.file_range(block), index.block_range(block)
    data = file.read(end - begin)
    if index.compression is not None:
        try:
            data = unpack_blocks(data, stop - start)
        except ValueError as error:
            yield LeftOut(first, last, f"the block does not unpack: {error}")
            return
    is_whole = True
    for record in range(first, last):
        offset = int(index.offsets[record])
        frame = data[offset - start : int(index.offsets[record + 1]) - start]
        reason = _frame_damage(frame, int(index.offsets[record + 1]) - offset)
        if reason is not None:
            is_whole = False
        else:
            reason = "; ".join(problems(path, offset, frame[HEADER_BYTES:-FOOTER_BYTES]))
        if reason:
            yield LeftOut(record, record + 1, reason)
    if is_whole and google_crc32c.value(data) != index.block_crc32c[block]:
        yield LeftOut(first, last, "not the records that were written, by the index's checksum")


def _frame_damage(frame: bytes, size: int) -> str | None:
    """Return what is wrong with a record and what stands around it, or None."""
    if len(frame) < size:
        return "the file ends before it"
    length, length_crc = _HEADER.unpack_from(frame)
    if masked_crc32c(frame[:8]) != length_crc or length != size - FRAME_BYTES:
        return "its length does not fit its checksum or the index"
    if masked_crc32c(frame[HEADER_BYTES:-FOOTER_BYTES]) != _FOOTER.unpack(frame[-FOOTER_BYTES:])[0]:
        return "its checksum does not fit"
    return None


def _joined(found: list[LeftOut]) -> Iterator[LeftOut]:
    """Yield runs that do not overlap, neighbours of one reason as one."""
    before: LeftOut | None = None
    for left_out in sorted(found):
        if before is None:
            before = left_out
        elif left_out.first < before.last or (left_out.first == before.last and left_out.reason == before.reason):
            # A block that is quarantined as a whole begins no later than the damage found in it.
            reason = before.reason if before.last >= left_out.last else left_out.reason
            before = LeftOut(before.first, max(before.last, left_out.last), reason)
        else:
            yield before
            before = left_out
    if before is not None:
        yield before
