"""The records of datasets and of other TFRecord files: a Source whose references lead to frames.

References to records of uncompressed files point into the files. Records of compressed files have no address, so they are unpacked
once and spooled (see beam_jobs.steps.listing.list_references).
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import Note
from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.listed_pack import NOT_HELD, ListedPack
from beam_jobs.references.packs.pack import PACK_REFERENCES, Pack
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.sources.source import PackSource
from beam_jobs.stored_records.foreign.unread_records import describe_unread_records
from beam_jobs.stored_records.frames import read_compressed_frames, read_frames, remove_frame
from beam_jobs.stored_records.splits import Splitter
from beam_jobs.stored_records.stored_files import StoredDataset, StoredFile, list_stored_files
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.format import Shard, read_records
from tpudata.format.tfrecord.frame_scan import GZIP_MAGIC, is_header, scan_frames
from tpudata.format.tfrecord.framing import HEADER_BYTES, pack_frame
from tpudata.format.tfrecord.gzip_blocks import GZIP
from tpudata.storage import Entry, storage_for

# Ends of the names of TFRecord files: `-00000-of-00010`, `.tfrecord`, `.tfrecords-3`, `.tfrec.gz`. Files next to them, such as
# `train.tfrecord.idx`, end otherwise.
_RECORDS_NAME = re.compile(r"(?:-\d+-of-\d+|\.(?:tfrecords?|tfrec|records?)[-_.\d]*)(?:\.gz)?$", re.IGNORECASE)
# Maximum number of names of ignored files that are printed, and of files that are examined to find them.
_MAX_NAMES, _MAX_EXAMINED = 5, 100
# Bytes of records that are unpacked and held together, or one larger record.
_PACK_BYTES = 1 << 24
# (first, stop) of consecutive records of a file.
Runs = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class StoredRecordSource(PackSource):
    """The records of datasets or of files, in order: a PackSource whose parts and units are files.

    Attributes:
        paths: paths of the inputs.
        take: the splits that are read, or None for all.
        datasets: the datasets of the inputs; empty for files of other programs.
        splitter: rule that gives each record its split.
        class_names: class names of the output, or None without classes.
        skips_other_files: whether files without TFRecords are ignored, unless they are named like TFRecords; otherwise they are
            rejected.
    """

    paths: tuple[str, ...]
    take: tuple[str, ...] | None
    datasets: tuple[StoredDataset, ...]
    splitter: Splitter
    class_names: tuple[str, ...] | None
    skips_other_files: bool = False

    @property
    def has_classes(self) -> bool:
        """Whether the output has class names."""
        return self.class_names is not None

    @property
    def labels(self) -> Labels:
        """The classes of the output; empty without classes."""
        return Labels(self.class_names or ())

    def describe_ignored_files(self) -> str:
        """Return the words that follow the number of ignored files in a line: why they were ignored, and the first names."""
        candidates = (file for file in self.parts() if not file.size or not has_record_name(file.name))
        ignored_names = (
            file.name
            for file in itertools.islice(candidates, _MAX_EXAMINED)
            if detect_compression(file.path, file.size) is None and self._is_ignored(file)
        )
        names = list(itertools.islice(ignored_names, _MAX_NAMES + 1))
        ellipsis = ", ..." if len(names) > _MAX_NAMES else ""
        return f"without TFRecords{': ' if names else ''}{', '.join(names[:_MAX_NAMES])}{ellipsis}"

    def parts(self) -> Iterator[StoredFile]:
        """Yield the files; raise what `list_stored_files` raises."""
        return list_stored_files(self.paths, [dataset.open() for dataset in self.datasets], self.take)

    def units(self, part: StoredFile, ignored: list[str]) -> tuple[StoredFile]:
        """Return the file itself, as the only unit; nothing is ignored here."""
        del ignored
        return (part,)

    def noting(self, note: Note) -> StoredRecordSource:
        """Return this source, which notes nothing."""
        del note
        return self

    def packs(self, unit: StoredFile, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the records of a file that are not in quarantine.

        Args:
            unit: file whose records are listed.
            ignored: list to which this method appends the path of a file without TFRecords that it skips.
            reject: called with the error of a damaged file or record. If it returns, the records that can be found are listed.
        """
        if unit.shard is not None:
            yield from self._list_shard(unit, unit.shard, reject)
            return
        compression = detect_compression(unit.path, unit.size)
        if compression is None:
            if self._is_ignored(unit):
                ignored.append(unit.path)
            else:
                reject(_make_file_error(unit))
        elif compression == GZIP:
            yield from self._list_compressed(unit, _read_gzip_frames(unit.path, reject), reject)
        else:
            offsets = _find_offsets(unit, reject)
            yield from self._list_uncompressed(unit, offsets, [(0, len(offsets) - 1)], reject)

    def _is_ignored(self, file: StoredFile) -> bool:
        """Return whether a file that does not begin like TFRecords is ignored, instead of rejected."""
        # An empty file has no records, so it is never rejected. A folder may also hold other files, whose names and content are not
        # those of TFRecords.
        may_lack_records = self.skips_other_files and not has_record_name(file.name)
        return not file.size or (may_lack_records and not describe_unread_records(file.path, file.size))

    def _list_shard(self, unit: StoredFile, shard: Shard, reject: Reject) -> Iterator[ListedPack]:
        """Yield the records of a dataset's shard that are not in quarantine, found by its index."""
        assert unit.dataset is not None
        dataset = self.datasets[unit.dataset].open()
        index = dataset.index(shard)
        runs = [(first, stop) for first, stop in dataset.kept_runs(shard).tolist()]
        if index.compression is None:
            yield from self._list_uncompressed(unit, index.offsets.astype(np.int64), runs, reject)
            return
        frames = (
            (record_index, frame)
            for first, stop in runs
            for record_index, frame in enumerate(read_compressed_frames(unit.path, index, first, stop), first)
        )
        yield from self._list_compressed(unit, frames, reject)

    def _list_uncompressed(
        self, unit: StoredFile, offsets: npt.NDArray[np.int64], runs: Runs, reject: Reject
    ) -> Iterator[ListedPack]:
        """Yield the records of an uncompressed file, which are read only if their content decides their splits.

        Args:
            unit: file whose records are listed.
            offsets: int64 [records + 1], byte offset of each record, and the end of the last one.
            runs: the records to yield.
            reject: called with the error of a record that is damaged or has no key. If it returns, the record is omitted.
        """
        for first, stop in runs:
            frames = read_frames(unit.path, offsets, first, stop) if self.splitter.reads_records else iter(())
            for pack_first in range(first, stop, PACK_REFERENCES):
                records = np.arange(pack_first, min(pack_first + PACK_REFERENCES, stop))
                splits = None
                if self.splitter.reads_records:
                    # `zip` stops after the last record without taking a frame, so the next pack continues with its own frames.
                    splits_by_record = self._assign_splits(
                        unit, zip(records.tolist(), frames, strict=False), offsets, reject
                    )
                    records = np.array(list(splits_by_record), np.int64)
                    splits = list(splits_by_record.values())
                if len(records):
                    sizes = offsets[records + 1] - offsets[records]
                    # The pack holds no bytes: its references point into the file.
                    starts = np.full(len(records), NOT_HELD)
                    yield self._make_pack(unit, records, sizes, offsets[records], starts, splits)

    def _assign_splits(
        self,
        unit: StoredFile,
        frames: Iterable[tuple[int, bytes]],
        offsets: npt.NDArray[np.int64],
        reject: Reject,
    ) -> dict[int, str]:
        """Return the split of each record, by its index; records that are rejected are omitted.

        Args:
            unit: file that has the records.
            frames: (index, frame) of each record.
            offsets: int64 [records + 1], byte offset of each record of the file, by index.
            reject: called with the error of a record that is damaged or has no key. If it returns, the record is omitted.
        """
        splits = {}
        for record_index, frame in frames:
            start = int(offsets[record_index])
            try:
                key = self.splitter.read_key(remove_frame(frame, unit.path, start), unit.path, start)
            except BadRecordError as error:
                reject(error)
                continue
            splits[record_index] = self.splitter.assign_split(unit.split, key)
        return splits

    def _list_compressed(
        self, unit: StoredFile, frames: Iterable[tuple[int, bytes | Exception]], reject: Reject
    ) -> Iterator[ListedPack]:
        """Yield the records of a compressed file with their frames, since no range of the file holds a frame.

        Args:
            unit: file whose records are listed.
            frames: (index in the file, frame or error of reading it) of each record.
            reject: called with the error of a record that cannot be read or has no key. If it returns, the record is omitted.
        """
        frames_by_record: dict[int, bytes] = {}
        splits: list[str] = []
        frame_bytes = 0
        for record_index, frame in frames:
            origin = f"{unit.name}:{record_index} in {unit.path}"
            try:
                if isinstance(frame, Exception):
                    raise BadRecordError(origin, getattr(frame, "reason", str(frame)))
                if self.splitter.reads_records:
                    # Records of compressed files have no offset.
                    key = self.splitter.read_key(remove_frame(frame, unit.path, offset=0), origin, offset=0)
                    splits.append(self.splitter.assign_split(unit.split, key))
            except BadRecordError as error:
                reject(error)
                continue
            frames_by_record[record_index] = frame
            frame_bytes += len(frame)
            if len(frames_by_record) == PACK_REFERENCES or frame_bytes >= _PACK_BYTES:
                yield self._make_pack_with_frames(unit, frames_by_record, splits)
                frames_by_record, splits, frame_bytes = {}, [], 0
        if frames_by_record:
            yield self._make_pack_with_frames(unit, frames_by_record, splits)

    def _make_pack_with_frames(
        self, unit: StoredFile, frames_by_record: Mapping[int, bytes], splits: list[str]
    ) -> ListedPack:
        """Return the pack of records of a compressed file with their frames; if `splits` is empty, the keys decide the splits."""
        frames = list(frames_by_record.values())
        sizes = np.array(list(map(len, frames)), np.int64)
        records = np.array(list(frames_by_record), np.int64)
        # Offsets and starts are 0: each frame is a separate buffer, and gets its offset in the spool.
        zeros = np.zeros(len(frames), np.int64)
        listed_pack = self._make_pack(unit, records, sizes, zeros, zeros, splits or None)
        return listed_pack._replace(buffers=frames, buffer_indices=np.arange(len(frames)))

    def _make_pack(
        self,
        unit: StoredFile,
        records: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        splits: list[str] | None,
    ) -> ListedPack:
        """Return the pack of some records of a file, without buffers, which `_make_pack_with_frames` adds.

        Args:
            unit: file that has the records.
            records: int64 [n], indices of the records.
            sizes: int64 [n], bytes of their frames.
            offsets: int64 [n], offsets of the frames in the file; 0 if they are held.
            starts: int64 [n], starts of the frames in their buffers, or NOT_HELD.
            splits: split of each record, or a single split that all share; None assigns splits by the keys.
        """
        keys = PackedKeys([f"{unit.name}:"], narrow(records))
        digests = keys.digests()
        if splits is None:
            splits = self.splitter.assign_splits(unit.split, keys, digests)
        pack = Pack.from_columns(keys, sizes, offsets, paths=[unit.path], splits=splits, payloads=[unit.payload])
        return ListedPack(pack, digests, buffers=[], buffer_indices=np.zeros(len(records), np.intp), starts=starts)


def detect_compression(path: str, size: int) -> str | None:
    """Return the compression of a TFRecord file, detected from its first bytes: "gzip" or an empty string; None for other files.

    Compare the result with None: an empty string is an uncompressed TFRecord file. A file that begins like gzip and cannot be
    unpacked is "gzip", so that reading its records reports the damage.
    """
    if size < HEADER_BYTES:
        return None
    head = storage_for(path).read_range(path, 0, HEADER_BYTES)
    if is_header(head):
        return ""
    if not head.startswith(GZIP_MAGIC):
        return None
    with storage_for(path).open(path) as compressed_file, gzip.GzipFile(fileobj=compressed_file, mode="rb") as file:
        try:
            head = file.read(HEADER_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return GZIP
    # A compressed file of no bytes is a file of no records.
    return GZIP if not head or is_header(head) else None


def has_record_name(name: str) -> bool:
    """Return whether a file is named like TFRecords, such as `train-00000-of-00010` or `x.tfrecord.gz`."""
    return _RECORDS_NAME.search(name) is not None


def _make_file_error(unit: StoredFile) -> BadRecordError:
    """Return the error of a file that does not begin with an intact record."""
    problem = describe_unread_records(unit.path, unit.size)
    if problem:
        return BadRecordError(unit.path, problem, offset=0)
    if unit.size < HEADER_BYTES:
        got = f"it has {unit.size} bytes, and the header of a record has {HEADER_BYTES}"
    else:
        got = "the checksum of the first record's length does not match"
    return BadRecordError(
        unit.path, f"not a TFRecord file; {got}; restore it, or name the files to read by a pattern", offset=0
    )


def _find_offsets(unit: StoredFile, reject: Reject) -> npt.NDArray[np.int64]:
    """Return the offsets of the records of a foreign file, and the end of the last one before any damage: int64 [records + 1]."""
    starts = array("q")
    try:
        # `scan_frames` appends the start of each frame to `starts`.
        end = scan_frames(Entry(unit.path, unit.name, unit.size, is_folder=False), starts)
    except CorruptionError as error:
        reject(BadRecordError(unit.path, error.reason, error.offset))
        end = error.offset
    starts.append(end)
    return np.frombuffer(starts, np.int64)


def _read_gzip_frames(path: str, reject: Reject) -> Iterator[tuple[int, bytes]]:
    """Yield (index, frame) of each record of a compressed file; reject the file at the first damage."""
    try:
        for index, (_, data) in enumerate(read_records(path, GZIP)):
            yield index, pack_frame(data)
    except CorruptionError as error:
        reason = f"{error.reason}; no record after it can be read"
        reject(BadRecordError(path, reason, error.offset))
