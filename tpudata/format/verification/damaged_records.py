"""Search for the records of a damaged shard that cannot be read or do not match the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from tpudata.errors import CorruptionError, DatasetError, StorageError, StorageUnavailableError
from tpudata.format.dataset import Dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, Shard
from tpudata.format.quarantine import QUARANTINE_NAME, Quarantine, ShardQuarantine, SkippedRecords
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, has_checksum, unpack_header
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ExampleCheck, ShardCheck
from tpudata.format.verification.shard_walk import Problems
from tpudata.storage import storage_for


def quarantine_damage(
    folder: str, defects: Iterable[Defect], example_check: ExampleCheck | None
) -> tuple[Quarantine, list[Defect]]:
    """Write the list of records for readers to skip: exactly the damaged ones.

    Args:
        folder: the dataset's folder.
        defects: all defects that `verify` found.
        example_check: the `example_check` of `verify`.

    Returns:
        The list that was written, and the defects that still keep readers from the dataset.

    Raises:
        DatasetError: the manifest cannot be read.
        StorageError: a file cannot be read or written.
    """
    storage = storage_for(folder)
    manifest_path, path = storage.join(folder, MANIFEST_NAME), storage.join(folder, QUARANTINE_NAME)
    manifest = Manifest.from_bytes(storage.read(manifest_path), manifest_path)
    dataset, check = Dataset(folder, manifest), ShardCheck(folder, manifest, example_check)
    shards = {dataset.shard_path(shard): shard for split in manifest.splits.values() for shard in split.shards}
    damaged, remaining, unknown = {}, [], set()
    for defect in defects:
        shard = shards.get(defect.path)
        if shard is not None and shard.name not in damaged and shard.name not in unknown:
            try:
                damaged[shard.name] = find_damaged_records(defect.path, shard, dataset.index(shard), check.problems)
            except (CorruptionError, DatasetError):
                unknown.add(shard.name)
            except StorageUnavailableError:
                raise
            except StorageError:
                unknown.add(shard.name)
        if defect.path != path and (shard is None or shard.name in unknown):
            remaining.append(defect)
    quarantine = Quarantine(damaged)
    if damaged:
        with storage.create(path) as file:
            file.write(quarantine.to_bytes())
    elif storage.stat(path) is not None:
        storage.delete(path)
    return quarantine, remaining


def find_damaged_records(path: str, shard: Shard, index: ShardIndex, problems: Problems) -> ShardQuarantine:
    """Read a shard block by block, and return the records to skip.

    Memory holds one block of records.

    Args:
        path: path of the shard's file.
        shard: its entry in the manifest.
        index: its index.
        problems: returns the problems of a record's content.

    Raises:
        StorageError: the file exists but cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    if entry is None:
        return ShardQuarantine(shard.crc32c, 0, (SkippedRecords(0, shard.records, "the shard is missing"),))
    with storage.open(path) as file:
        runs = [run for block in range(index.blocks) for run in _check_block(path, file, index, block, problems)]
    return ShardQuarantine(shard.crc32c, entry.size, tuple(_join_overlaps(runs)))


def _check_block(
    path: str, file: BinaryIO, index: ShardIndex, block: int, problems: Problems
) -> Iterator[SkippedRecords]:
    """Read the next block of a shard and yield the records to skip."""
    first = block * index.block_records
    stop = min(first + index.block_records, index.records)
    (begin, end), (unpacked_begin, unpacked_end) = index.file_range(block), index.block_range(block)
    data = file.read(end - begin)
    if index.compression is not None:
        try:
            data = unpack_blocks(data, unpacked_end - unpacked_begin)
        except ValueError as error:
            yield SkippedRecords(first, stop, f"the block does not unpack: {error}")
            return
    is_whole = True
    for record in range(first, stop):
        offset = int(index.offsets[record])
        frame = data[offset - unpacked_begin : int(index.offsets[record + 1]) - unpacked_begin]
        reason = _find_frame_damage(frame, int(index.offsets[record + 1]) - offset)
        if reason is not None:
            is_whole = False
        else:
            content_problems = problems(path, offset, frame[HEADER_BYTES:-FOOTER_BYTES])
            reason = "; ".join(problem.reason for problem in content_problems)
        if reason:
            yield SkippedRecords(record, record + 1, reason)
    if is_whole and google_crc32c.value(data) != index.block_crc32c[block]:
        yield SkippedRecords(first, stop, "the records differ from those that were written, by the index's checksum")


def _find_frame_damage(frame: bytes, size: int) -> str | None:
    """Return the problem of a record's frame or data, in words, or None."""
    if len(frame) < size:
        return "the file ends before it"
    if unpack_header(frame[:HEADER_BYTES]) != size - FRAME_BYTES:
        return "its length does not match its checksum or the index"
    if not has_checksum(frame[HEADER_BYTES:-FOOTER_BYTES], frame[-FOOTER_BYTES:]):
        return "its checksum does not match"
    return None


def _join_overlaps(skipped_records: list[SkippedRecords]) -> Iterator[SkippedRecords]:
    """Yield runs that do not overlap; neighbours with the same reason are joined."""
    before: SkippedRecords | None = None
    for skipped in sorted(skipped_records):
        if before is None:
            before = skipped
        elif skipped.first < before.stop or (skipped.first == before.stop and skipped.reason == before.reason):
            # A wholly quarantined block begins no later than the damage in it.
            reason = before.reason if before.stop >= skipped.stop else skipped.reason
            before = SkippedRecords(before.first, max(before.stop, skipped.stop), reason)
        else:
            yield before
            before = skipped
    if before is not None:
        yield before
