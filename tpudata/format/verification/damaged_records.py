"""Search for the records of a damaged shard that cannot be read or do not match the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from tpudata.errors import CorruptionError, DatasetError, StorageError, StorageUnavailableError
from tpudata.format.dataset import Dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, Shard, list_shards
from tpudata.format.quarantine import QUARANTINE_NAME, Quarantine, ShardQuarantine, SkippedRecords
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, matches_checksum, unpack_header
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ExampleCheck, ShardCheck
from tpudata.format.verification.shard_walk import FindProblems
from tpudata.storage import storage_for


def quarantine_damage(
    folder: str, defects: Iterable[Defect], example_check: ExampleCheck | None
) -> tuple[Quarantine, list[Defect]]:
    """Write the list of records that readers skip: the damaged ones of shards that have defects and a valid index.

    All records of a missing shard are listed, and none of a shard whose file cannot be read. If no shard is listed, an earlier list
    is removed.

    Args:
        folder: the dataset's folder.
        defects: all defects that `verify` found.
        example_check: the `example_check` of `verify`.

    Returns:
        The quarantine that readers find now, and the defects that it does not solve: of other files and of unreadable shards.

    Raises:
        DatasetError: the manifest is damaged or of another version.
        StorageError: the manifest cannot be read, the list cannot be written or removed, or the storage is unavailable.
    """
    storage = storage_for(folder)
    manifest_path, quarantine_path = storage.join(folder, MANIFEST_NAME), storage.join(folder, QUARANTINE_NAME)
    manifest = Manifest.from_bytes(storage.read(manifest_path), manifest_path)
    dataset = Dataset(folder, manifest)
    check = ShardCheck(folder, manifest, example_check)
    shards_by_path = {dataset.shard_path(shard): shard for shard in list_shards(manifest)}
    quarantined_shards: dict[str, ShardQuarantine] = {}
    # Names of shards that have no valid index or cannot be read.
    unreadable_names: set[str] = set()
    remaining_defects = []
    for defect in defects:
        shard = shards_by_path.get(defect.path)
        if shard is not None and shard.name not in quarantined_shards and shard.name not in unreadable_names:
            try:
                quarantined_shards[shard.name] = find_damaged_records(
                    defect.path, shard, dataset.index(shard), check.find_problems
                )
            except StorageUnavailableError:
                # An outage is not damage.
                raise
            except (CorruptionError, DatasetError, StorageError):
                unreadable_names.add(shard.name)
        # A damaged list of records to skip is replaced or removed below.
        if defect.path != quarantine_path and (shard is None or shard.name in unreadable_names):
            remaining_defects.append(defect)
    quarantine = Quarantine(quarantined_shards)
    if quarantined_shards:
        with storage.create(quarantine_path) as file:
            file.write(quarantine.to_bytes())
    elif storage.stat(quarantine_path) is not None:
        storage.delete(quarantine_path)
    return quarantine, remaining_defects


def find_damaged_records(path: str, shard: Shard, index: ShardIndex, find_problems: FindProblems) -> ShardQuarantine:
    """Read a shard block by block, and return the records to skip.

    Memory holds one block of records.

    Args:
        path: path of the shard's file.
        shard: its entry in the manifest.
        index: its valid index, which locates its records.
        find_problems: returns the problems of a record's content.

    Raises:
        StorageError: the file exists but cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    if entry is None:
        all_records = SkippedRecords(first=0, stop=shard.records, reason="the shard is missing")
        return ShardQuarantine(shard.crc32c, bytes=0, records=(all_records,))
    with storage.open(path) as file:
        runs = [
            run
            for block_index in range(index.blocks)
            for run in _find_block_damage(path, file, index, block_index, find_problems)
        ]
    return ShardQuarantine(shard.crc32c, entry.size, tuple(_join_runs(runs)))


def _find_block_damage(
    path: str, file: BinaryIO, index: ShardIndex, block_index: int, find_problems: FindProblems
) -> Iterator[SkippedRecords]:
    """Read the next block of a shard and yield the records to skip.

    Args:
        path: path of the shard's file, for messages.
        file: the shard's file, opened and read up to this block.
        index: index of the shard.
        block_index: index of the block.
        find_problems: returns the problems of a record's content.
    """
    first = block_index * index.block_records
    stop = min(first + index.block_records, index.records)
    begin, end = index.file_range(block_index)
    unpacked_begin, unpacked_end = index.block_range(block_index)
    data = file.read(end - begin)
    if index.compression is not None:
        try:
            data = unpack_blocks(data, unpacked_end - unpacked_begin)
        except ValueError as error:
            yield SkippedRecords(first, stop, f"the block does not unpack: {error}")
            return
    has_damaged_frame = False
    for record_index in range(first, stop):
        offset, end_offset = int(index.offsets[record_index]), int(index.offsets[record_index + 1])
        frame = data[offset - unpacked_begin : end_offset - unpacked_begin]
        reason = _find_frame_damage(frame, end_offset - offset)
        if reason is not None:
            has_damaged_frame = True
        else:
            problems = find_problems(path, offset, frame[HEADER_BYTES:-FOOTER_BYTES])
            reason = "; ".join(problem.reason for problem in problems)
        if reason:
            yield SkippedRecords(record_index, record_index + 1, reason)
    # A damaged record explains a wrong checksum of its block.
    if not has_damaged_frame and google_crc32c.value(data) != index.block_crc32c[block_index]:
        yield SkippedRecords(first, stop, "the records differ from those that were written, by the index's checksum")


def _find_frame_damage(frame: bytes, size: int) -> str | None:
    """Return the damage of a record of `size` bytes with header and footer, in words; None if it is intact."""
    if len(frame) < size:
        return "the file ends before it"
    if unpack_header(frame[:HEADER_BYTES]) != size - FRAME_BYTES:
        return "its length does not match its checksum or the index"
    if not matches_checksum(frame[HEADER_BYTES:-FOOTER_BYTES], frame[-FOOTER_BYTES:]):
        return "its checksum does not match"
    return None


def _join_runs(runs: list[SkippedRecords]) -> Iterator[SkippedRecords]:
    """Yield the runs in order; runs that overlap, and neighbours with the same reason, are joined."""
    joined_run: SkippedRecords | None = None
    for run in sorted(runs):
        if joined_run is None:
            joined_run = run
        elif run.first < joined_run.stop or (run.first == joined_run.stop and run.reason == joined_run.reason):
            # The longer run, such as a whole block, has the reason that covers all records.
            reason = joined_run.reason if joined_run.stop >= run.stop else run.reason
            joined_run = SkippedRecords(joined_run.first, max(joined_run.stop, run.stop), reason)
        else:
            yield joined_run
            joined_run = run
    if joined_run is not None:
        yield joined_run
