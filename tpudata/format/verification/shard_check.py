"""Check of one shard and its index: every byte, every checksum, every record."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import google_crc32c

from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, StorageError, StorageUnavailableError
from tpudata.format.example.decode import decode_example
from tpudata.format.example.wire import MAX_EXAMPLE_BYTES, Value
from tpudata.format.layout import dali_index_name, index_name
from tpudata.format.manifest.manifest import Manifest, Shard
from tpudata.format.shards.dali_index import encode_dali_index
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.framing import UNPACKED, read_records
from tpudata.format.verification.defect import Defect, Problem
from tpudata.format.verification.record_check import RecordCheck
from tpudata.format.verification.shard_walk import ShardWalk
from tpudata.storage import storage_for

# Returns the problems of a decoded record, given the manifest and the record: each in words, or as a `Problem` that has a kind.
ExampleCheck = Callable[[Manifest, Mapping[str, Value]], Iterable[str | Problem]]

# Bytes that are read between two calls of `progress`, and at once for the checksum of a file.
_PROGRESS_BYTES = 8_000_000


class ShardCheck:
    """Check of the shards of one dataset; pickled to worker processes.

    Attributes:
        folder: the dataset's folder.

    Args:
        folder: the dataset's folder.
        manifest: its manifest.
        example_check: extra checks of each decoded record, or None.
        max_record_bytes: bytes of the largest record that readers can parse.
    """

    def __init__(
        self,
        folder: str,
        manifest: Manifest,
        example_check: ExampleCheck | None,
        *,
        max_record_bytes: int = MAX_EXAMPLE_BYTES,
    ) -> None:
        self.folder = folder
        self._manifest = manifest
        self._example_check = example_check
        self._max_record_bytes = max_record_bytes
        self._record_check = RecordCheck(manifest)

    def find_defects(self, shard: Shard, progress: Callable[[int], None] | None = None) -> Iterator[Defect]:
        """Yield the defects of a shard's indexes, then the defects of the shard itself.

        Memory holds one record, of a compressed shard one block of records, and the index.

        Args:
            shard: the shard.
            progress: called with the number of bytes read since the last call.

        Raises:
            StorageUnavailableError: the storage did not answer, or denied permission.
        """
        index = yield from self._read_index(shard)
        if self._manifest.dali_index:
            yield from self._find_dali_defects(shard, index)
        path = storage_for(self.folder).join(self.folder, shard.name)
        walk = ShardWalk(path, shard, index)
        reported_bytes = 0
        try:
            for defects in self._find_shard_defects(path, shard, index, walk):
                yield from defects
                if progress and walk.file_offset - reported_bytes >= _PROGRESS_BYTES:
                    progress(walk.file_offset - reported_bytes)
                    reported_bytes = walk.file_offset
        except StorageUnavailableError:
            # An outage is not a defect of the shard.
            raise
        except (StorageError, OSError) as error:
            yield Defect(path, walk.offset, f"cannot be read: {error}")
        # All calls together report the size in the manifest, whatever could be read of the file.
        if progress:
            progress(shard.bytes - reported_bytes)

    def _find_shard_defects(
        self, path: str, shard: Shard, index: ShardIndex | None, walk: ShardWalk
    ) -> Iterator[Sequence[Defect]]:
        """Yield lists of the defects of a shard: of its size, of each record or block, and of its end.

        A record without defects gives an empty list, so that the caller can report progress.

        Args:
            path: the shard's path.
            shard: the shard.
            index: the shard's index; None if it is missing or not valid.
            walk: the walk that reads the records.
        """
        storage = storage_for(path)
        entry = storage.stat(path)
        if entry is None:
            yield [Defect(path, None, f"is missing; the manifest says {shard.bytes} bytes")]
            return
        if entry.size != shard.bytes:
            end = min(entry.size, shard.bytes)
            yield [Defect(path, end, f"the file has {entry.size} bytes, the manifest says {shard.bytes}")]
        if self._manifest.compression is not None and index is None:
            for defect in self._find_defects_without_index(path, shard):
                yield [defect]
            return
        with storage.open(path) as file:
            if index is not None and index.compression is not None:
                yield from walk.find_block_defects(file, index, self.find_problems)
            else:
                yield from walk.find_record_defects(file, entry.size, self.find_problems)
        yield list(walk.find_end_defects())

    def _find_dali_defects(self, shard: Shard, index: ShardIndex | None) -> Iterator[Defect]:
        """Yield the defects of a shard's index for DALI; `index` is the shard's own index, None if it is missing or not valid."""
        storage = storage_for(self.folder)
        path = storage.join(self.folder, dali_index_name(shard.name))
        try:
            if storage.stat(path) is None:
                yield Defect(path, None, "is missing")
            elif index is not None and storage.read(path) != encode_dali_index(index):
                yield Defect(path, 0, "differs from the index of its shard. Write it again with tpudata index")
        except StorageUnavailableError:
            # An outage is not a defect.
            raise
        except StorageError as error:
            yield Defect(path, 0, f"cannot be read: {error}")

    def _find_defects_without_index(self, path: str, shard: Shard) -> Iterator[Defect]:
        """Yield the defects of a compressed shard without a valid index, up to the first damage, which ends the reading."""
        record_count = 0
        try:
            for offset, data in read_records(path, self._manifest.compression):
                record_count += 1
                for problem in self.find_problems(path, offset, data):
                    yield Defect(path, offset, problem.reason + UNPACKED, problem.kind)
        except CorruptionError as error:
            yield Defect(path, error.offset, f"{error.reason}; the rest is not checked")
            return
        if record_count != shard.records:
            yield Defect(
                path, None, f"{count_text(record_count, 'record')}, the manifest says {count_text(shard.records)}"
            )
        crc = 0
        with storage_for(path).open(path) as file:
            while part := file.read(_PROGRESS_BYTES):
                crc = google_crc32c.extend(crc, part)
        if crc != shard.crc32c:
            yield Defect(path, 0, f"the checksum of the file is {crc:08x}, the manifest says {shard.crc32c:08x}")

    def find_problems(self, path: str, offset: int, data: bytes) -> list[Problem]:
        """Return the problems of a record's content; `path` is its file and `offset` its byte there, for messages."""
        if len(data) > self._max_record_bytes:
            size = f"got {len(data)} bytes, expected at most {self._max_record_bytes} in a tf.train.Example"
            return [Problem(f"the record is too large ({size})")]
        try:
            example = decode_example(data, path=path, offset=offset)
        except CorruptionError as error:
            return [Problem(error.reason)]
        problems = [
            *self._record_check.find_problems(example),
            *self._record_check.find_empty_list_problems(example, data),
        ]
        if self._example_check is not None:
            extra_problems = self._example_check(self._manifest, example)
            problems += (Problem(problem) if isinstance(problem, str) else problem for problem in extra_problems)
        return problems

    def _read_index(self, shard: Shard) -> Generator[Defect, None, ShardIndex | None]:
        """Yield the defects of a shard's index, and return the index; None if it is missing or not valid."""
        storage = storage_for(self.folder)
        path = storage.join(self.folder, index_name(shard.name))
        try:
            if storage.stat(path) is None:
                yield Defect(path, None, "is missing")
                return None
            data = storage.read(path)
            index = ShardIndex.from_bytes(data, path)
        except CorruptionError as error:
            yield Defect(path, error.offset, error.reason)
            return None
        except StorageUnavailableError:
            # An outage is not a defect.
            raise
        except StorageError as error:
            yield Defect(path, 0, f"cannot be read: {error}")
            return None
        manifest_shard = shard.records, shard.bytes, shard.crc32c, self._manifest.compression
        index_shard = index.records, index.shard_bytes, index.shard_crc32c, index.compression
        if index_shard != manifest_shard:
            yield Defect(
                path,
                0,
                f"describes another shard: {_describe_shard(*index_shard)}; the manifest says {_describe_shard(*manifest_shard)}",
            )
            return None
        if index.to_bytes() != data:
            yield Defect(path, 0, "the index is not as this tpudata writes it, although its checksum matches")
            return None
        return index


def _describe_shard(record_count: int, size: int, crc32c: int, compression: str | None) -> str:
    """Return what a manifest or an index says about a shard, in words."""
    suffix = "" if compression is None else f", {compression}"
    return f"{count_text(record_count, 'record')}, {size} bytes, checksum {crc32c:08x}{suffix}"
