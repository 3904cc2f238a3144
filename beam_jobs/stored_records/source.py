"""The records of datasets and of other TFRecord files: a Source whose references lead to frames.

Records of uncompressed files are referred to where they are. Those of compressed files have no address, so that they are unpacked
once and written aside (see beam_jobs.steps.listing.list_references).
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.sources.source import Source
from beam_jobs.stored_records.frames import framed, read_frames, read_packed_frames, unframed
from beam_jobs.stored_records.splits import Splitter
from beam_jobs.stored_records.stored_files import StoredDataset, StoredFile, stored_files
from beam_jobs.stored_records.unread_records import unread_records
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.format import Shard, read_records
from tpudata.format.tfrecord.frame_scan import GZIP_MAGIC, is_header, scan_frames
from tpudata.format.tfrecord.framing import HEADER_BYTES
from tpudata.format.tfrecord.gzip_blocks import GZIP
from tpudata.storage import Entry, storage_for

# Ends of the names of TFRecord files: `-00000-of-00010`, `.tfrecord`, `.tfrecords-3`, `.tfrec.gz`. Files next to them, such as
# `train.tfrecord.idx`, end otherwise.
_RECORDS_NAME = re.compile(r"(?:-\d+-of-\d+|\.(?:tfrecords?|tfrec|records?)[-_.\d]*)(?:\.gz)?$", re.IGNORECASE)
# Names of ignored files that are printed, and files that are looked at for them.
_NAMES, _LOOKS = 5, 100
Runs = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class StoredRecords(Source):
    """The records of datasets or of files, in order: a Source whose parts and units are files.

    Attributes:
        paths: of the inputs.
        take: the splits that are read, or None for all.
        datasets: those that the inputs are; empty for files of other programs.
        splitter: gives each record its split.
        class_names: of the output, or None without classes.
        skips_foreign: whether files that hold no TFRecords are ignored, unless their name is that of TFRecords; otherwise they are
            an error.
    """

    paths: tuple[str, ...]
    take: tuple[str, ...] | None
    datasets: tuple[StoredDataset, ...]
    splitter: Splitter
    class_names: tuple[str, ...] | None
    skips_foreign: bool = False

    @property
    def has_classes(self) -> bool:
        """Whether the output has class names."""
        return self.class_names is not None

    @property
    def labels(self) -> Labels:
        """The classes."""
        return Labels(self.class_names or ())

    def why_ignored(self) -> str:
        """Return why files were ignored, with the first names, to stand after their number."""
        others = (file for file in self.parts() if not file.size or is_named_otherwise(file.name))
        found = (file.name for file in itertools.islice(others, _LOOKS) if file_kind(file.path, file.size) is None)
        names = list(itertools.islice(found, _NAMES + 1))
        more = ", ..." if len(names) > _NAMES else ""
        return f"without TFRecords{': ' if names else ''}{', '.join(names[:_NAMES])}{more}"

    def parts(self) -> Iterator[StoredFile]:
        """Yield the files; raise as `stored_files`."""
        return stored_files(self.paths, [dataset.open() for dataset in self.datasets], self.take)

    def units(self, part: StoredFile, ignored: list[str]) -> tuple[StoredFile]:
        """Return a file, which is listed at once; nothing is ignored here."""
        del ignored
        return (part,)

    def references(self, unit: StoredFile, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to each record of a file that is not in quarantine.

        Args:
            unit: the file.
            ignored: gets the path of an ignored file without TFRecords.
            reject: called with the error of damage, after which the records that can be found are listed.
        """
        if unit.shard is not None:
            yield from self._of_shard(unit, unit.shard, reject)
            return
        kind = file_kind(unit.path, unit.size)
        if kind is None:
            # A folder may hold other files, too, which are known by their names and their content.
            is_foreign = self.skips_foreign and is_named_otherwise(unit.name)
            if unit.size and not (is_foreign and not unread_records(unit.path, unit.size)):
                reject(_not_records(unit))
            else:
                ignored.append(unit.path)
        elif kind == GZIP:
            yield from self._unpacked(unit, _unpacked_frames(unit.path, reject), reject)
        else:
            offsets = _offsets(unit, reject)
            yield from self._listed(unit, offsets, [(0, len(offsets) - 1)], reject)

    def _of_shard(self, unit: StoredFile, shard: Shard, reject: Reject) -> Iterator[Reference]:
        assert unit.dataset is not None
        dataset = self.datasets[unit.dataset].open()
        index = dataset.index(shard)
        runs = [(first, last) for first, last in dataset.kept_runs(shard).tolist()]
        if index.compression is None:
            yield from self._listed(unit, index.offsets.astype(np.int64), runs, reject)
            return
        numbered = (
            (number, frame)
            for first, last in runs
            for number, frame in enumerate(read_packed_frames(unit.path, index, first, last), first)
        )
        yield from self._unpacked(unit, numbered, reject)

    def _listed(
        self, unit: StoredFile, offsets: npt.NDArray[np.int64], runs: Runs, reject: Reject
    ) -> Iterator[Reference]:
        """Yield references to records of an uncompressed file, which is read only if that decides their splits."""
        for first, last in runs:
            if not self.splitter.reads_records:
                for number in range(first, last):
                    key, begin = f"{unit.name}:{number}", int(offsets[number])
                    split, size = self.splitter.split(unit.split, key), int(offsets[number + 1]) - begin
                    yield Reference(key, split, (), unit.path, begin, size, unit.payload)
                continue
            for number, frame in enumerate(read_frames(unit.path, offsets, first, last), first):
                begin = int(offsets[number])
                try:
                    known_by = self.splitter.key_of(unframed(frame, unit.path, begin), unit.path, begin)
                except BadRecordError as error:
                    reject(error)
                    continue
                split, key = self.splitter.split(unit.split, known_by), f"{unit.name}:{number}"
                yield Reference(key, split, (), unit.path, begin, len(frame), unit.payload)

    def _unpacked(
        self, unit: StoredFile, frames: Iterable[tuple[int, bytes | Exception]], reject: Reject
    ) -> Iterator[Reference]:
        """Yield references that carry their frames."""
        for number, frame in frames:
            key = f"{unit.name}:{number}"
            try:
                if isinstance(frame, Exception):
                    raise BadRecordError(f"{key} in {unit.path}", getattr(frame, "reason", str(frame)))
                known_by = key
                if self.splitter.reads_records:
                    known_by = self.splitter.key_of(unframed(frame, unit.path, 0), f"{key} in {unit.path}", 0)
            except BadRecordError as error:
                reject(error)
                continue
            split = self.splitter.split(unit.split, known_by)
            yield Reference(key, split, (), unit.path, 0, len(frame), unit.payload, data=frame)


def file_kind(path: str, size: int) -> str | None:
    """Return "" for an uncompressed TFRecord file, "gzip" for a compressed one, by its first bytes; None for other files.

    A file that begins as gzip and cannot be unpacked is "gzip": whoever reads its records meets the damage.
    """
    if size < HEADER_BYTES:
        return None
    head = storage_for(path).read_range(path, 0, HEADER_BYTES)
    if is_header(head):
        return ""
    if not head.startswith(GZIP_MAGIC):
        return None
    with storage_for(path).open(path) as packed, gzip.GzipFile(fileobj=packed, mode="rb") as file:
        try:
            head = file.read(HEADER_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return GZIP
    return GZIP if not head or is_header(head) else None


def is_named_otherwise(name: str) -> bool:
    """Return whether a file's name is not that of TFRecords, `train-00000-of-00010` or `x.tfrecord.gz`."""
    return _RECORDS_NAME.search(name) is None


def _not_records(unit: StoredFile) -> BadRecordError:
    problem = unread_records(unit.path, unit.size)
    if problem:
        return BadRecordError(unit.path, problem, 0)
    if unit.size < HEADER_BYTES:
        found = f"it has {unit.size} bytes, and the header of a record has {HEADER_BYTES}"
    else:
        found = "the checksum of the first record's length does not fit"
    return BadRecordError(
        unit.path, f"not a TFRecord file; {found}; restore it, or name the files to read by a pattern", 0
    )


def _offsets(unit: StoredFile, reject: Reject) -> npt.NDArray[np.int64]:
    """Return where the records of a foreign file begin, and the end of the last one that can be found."""
    starts = array("q")
    try:
        end = scan_frames(Entry(unit.path, unit.name, unit.size, False), starts)
    except CorruptionError as error:
        reject(BadRecordError(unit.path, error.reason, error.offset))
        end = error.offset
    starts.append(end)
    return np.frombuffer(starts, np.int64)


def _unpacked_frames(path: str, reject: Reject) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        for _, data in read_records(path, GZIP):
            yield number, framed(data)
            number += 1
    except CorruptionError as error:
        reason = f"{error.reason}; no record after it can be read"
        reject(BadRecordError(path, reason, error.offset))
