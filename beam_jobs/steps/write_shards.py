"""Writing shards: one worker reads a shard's inputs, converts them, and writes the shard and its index in one pass."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_jobs.append.known_keys import known_entries, mark_refused
from beam_jobs.converter import Converter, ShardConverter
from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.output.folder import give_up
from beam_jobs.output.rejects import Rejects, rejects_name
from beam_jobs.planning.plan import Plan
from beam_jobs.references.labels import Labels
from beam_jobs.references.pack import Pack
from beam_jobs.references.pack_reading import read_packs
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference
from beam_jobs.run.progress import ProgressReport
from beam_jobs.steps.duplicate_keys import duplicate_keys
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.format import ShardIndex, index_name, shard_name
from tpudata.format.dali_index import write_dali_index
from tpudata.format.example import MAX_EXAMPLE_BYTES
from tpudata.format.keys import Entries, ShardKeys
from tpudata.format.layout import dali_index_name, keys_name, shard_prefix
from tpudata.format.shard import write_shard_files
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for
from tpudata.storage.claims.claim import Claim, check_claim

_INPUTS, _RECORDS, _REJECTED = "inputs", "records", "rejected"


class ShardResult(NamedTuple):
    """One finished shard, small enough to collect millions of.

    Attributes:
        split: its split.
        name: its file name.
        records: number of records; 0 where all inputs were refused, so that there is no shard.
        bytes: size of the file.
        crc32c: of the file.
        summary: what the converter says about its records, as JSON: a runner takes no names that are not UTF-8.
        rejected: how many of its inputs were refused, by reason.
        files: those that belong to it, as they were written or found.
    """

    split: str
    name: str
    records: int
    bytes: int
    crc32c: int
    summary: str
    rejected: dict[str, int]
    files: tuple[WrittenFile, ...] = ()


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """Writes the shard of each ((split, shard number), packs of references) and yields its ShardResult, as a tuple.

    A shard is never empty: where all its inputs were refused it is not written, and they are listed without one.

    A shard appears under its name whole or not at all, and a second attempt writes the same bytes, so a runner may retry or
    duplicate the work.

    Args:
        options: of the conversion: where to write, and what happens to bad records.
        converter: makes the records.
        progress: is told of each record.
        keep_equal: inputs of one key and without a form are equal, and all are kept; any others of one key are an error.
        keys: whether to write down what each shard was made from, for an append.
        append: number of the append that writes them, or 0.
        claim: the run's, which it must still hold when it begins a shard; or None.
        dali_index: whether to write the index for DALI of each shard.
    """

    def __init__(
        self,
        options: ConvertOptions,
        converter: Converter | ShardConverter,
        progress: ProgressReport | None = None,
        *,
        keep_equal: bool = False,
        keys: bool = False,
        append: int = 0,
        claim: Claim | None = None,
        dali_index: bool = False,
    ) -> None:
        super().__init__()
        self._claim = claim
        self._dali_index = dali_index
        self._keep_equal = keep_equal
        self._keys = keys
        self._append = append
        self._output = options.output
        self._compression = options.compression
        self._resume = options.resume or options.append
        self._skip = options.on_bad_record == SKIP
        self._converter = converter
        self._progress = progress or ProgressReport(None)
        self._records_written = Metrics.counter("tpudata", "records")
        self._records_rejected = Metrics.counter("tpudata", "rejected")
        self._bytes_read = Metrics.counter("tpudata", "bytes_read")
        self._shards_written = Metrics.counter("tpudata", "shards_written")
        self._shards_kept = Metrics.counter("tpudata", "shards_kept")

    def setup(self) -> None:
        """Takes what is there already, Beam above all, out of the garbage collector's rounds: a tenth of the time otherwise."""
        gc.freeze()

    def teardown(self) -> None:
        """Gives it back."""
        gc.unfreeze()

    def process(
        self, element: tuple[tuple[str, int], Iterable[bytes]], plan: Plan, labels: Labels, learned: Any = None
    ) -> Iterator[tuple[Any, ...]]:
        """Writes one shard; `learned` is what a ShardConverter gets."""
        (split, number), packs = element
        inside = [Pack.from_bytes(data) for data in packs]
        try:
            _refuse_duplicates(inside, self._keep_equal)
        except SourceError:
            # No other attempt will do better, and what was written aside may be as large as the dataset.
            give_up(self._output, self._claim)
            raise
        check_claim(self._output, self._claim)
        name = shard_name(shard_prefix(split, self._append), number, plan.splits[split].count, plan.suffix)
        entries = known_entries(inside)
        inputs = _inputs_digest(entries, labels, self._converter, learned)
        finished = self._finished(name, inputs) if self._resume else None
        if self._resume:
            self._match_dali_index(name, None if finished is None else finished[0])
        if finished is not None:
            kept, files = finished
            self._shards_kept.inc()
            rejected = dict(kept.summary[_REJECTED])
            summary = json.dumps(kept.summary[_RECORDS])
            yield (split, name, kept.records, kept.shard_bytes, kept.shard_crc32c, summary, rejected, files)
            return
        counted = self._converter.new_summary()
        rejects = Rejects(name)
        refused: list[int] = []
        if isinstance(self._converter, ShardConverter):
            records = self._all_records(self._converter, inside, learned, counted, rejects, refused)
        else:
            records = self._records(self._converter, inside, labels, counted, rejects, refused)
        first = next(records, None)
        if first is None:
            self._remove_shard(name)
            mark_refused(entries, refused)
            files = rejects.write_without_shard(self._output, entries[refused]) if refused else ()
            yield (split, name, 0, 0, 0, json.dumps(counted.to_json()), rejects.counts(), files)
            return
        rejects.remove_without_shard(self._output)
        shard, files = write_shard_files(
            self._output,
            name,
            itertools.chain([first], records),
            lambda: {_INPUTS: inputs, _RECORDS: counted.to_json(), _REJECTED: rejects.counts()},
            compression=self._compression,
            dali_index=self._dali_index,
            # A run that began with an empty folder finds a shard only where another run writes there, or it wrote it itself.
            replace=self._resume,
        )
        # The index is there now; a resumed run holds the shard for finished only with its rejects and keys beside it.
        files += rejects.write(self._output)
        if self._keys:
            mark_refused(entries, refused)
            files += (self._write_keys(name, ShardKeys.of(entries, shard.crc32c)),)
        self._shards_written.inc()
        summary = json.dumps(counted.to_json())
        yield (split, name, shard.records, shard.bytes, shard.crc32c, summary, rejects.counts(), files)

    def _records(
        self,
        converter: Converter,
        packs: Iterable[Pack],
        labels: Labels,
        summary: Any,
        rejects: Rejects,
        refused: list[int],
    ) -> Iterator[bytes | Sequence[bytes]]:
        bytes_read = records = 0
        convert, progressed = converter.convert, self._progress.add
        references = itertools.chain.from_iterable(pack.references() for pack in packs)
        for row, (reference, data) in enumerate(read_references(references)):
            try:
                if isinstance(data, BadRecordError):
                    raise data
                record = convert(reference, labels, data, summary)
                _check_size(reference, record)
            except BadRecordError as error:
                if not self._skip:
                    raise
                rejects.add(error)
                refused.append(row)
                continue
            bytes_read += len(data)
            progressed(len(data))
            records += 1
            yield record
        self._bytes_read.inc(bytes_read)
        self._records_written.inc(records)
        self._records_rejected.inc(rejects.total)
        self._progress.flush()

    def _all_records(
        self,
        converter: ShardConverter,
        packs: Sequence[Pack],
        learned: Any,
        summary: Any,
        rejects: Rejects,
        refused: list[int],
    ) -> Iterator[bytes | Sequence[bytes]]:
        errors: dict[str, BadRecordError] = {}
        bytes_read = records = 0

        def refuse(reference: Reference, error: BadRecordError) -> None:
            if not self._skip:
                raise error
            errors[reference.key] = error

        def inputs() -> Iterator[tuple[Reference, bytes]]:
            nonlocal bytes_read
            for reference, data in read_packs(packs):
                if isinstance(data, BadRecordError):
                    refuse(reference, data)
                    continue
                bytes_read += len(data)
                self._progress.add(len(data))
                yield reference, data

        for record in converter.records(inputs(), learned, summary, refuse):
            records += 1
            yield record
        # In the order of the inputs, whenever they were refused.
        for row, key in enumerate(itertools.chain.from_iterable(pack.keys for pack in packs) if errors else ()):
            if key in errors:
                rejects.add(errors[key])
                refused.append(row)
        self._bytes_read.inc(bytes_read)
        self._records_written.inc(records)
        self._records_rejected.inc(rejects.total)
        self._progress.flush()

    def _remove_shard(self, name: str) -> None:
        """Removes what a run with other inputs has left under the name of a shard."""
        storage = storage_for(self._output)
        for path in (name, index_name(name), keys_name(name), dali_index_name(name), rejects_name(name)):
            storage.delete(storage.join(self._output, path))

    def _write_keys(self, name: str, keys: ShardKeys) -> WrittenFile:
        storage = storage_for(self._output)
        data = keys.to_bytes()
        with storage.create(storage.join(self._output, keys_name(name))) as file:
            file.write(data)
        return WrittenFile.of(keys_name(name), data)

    def _match_dali_index(self, name: str, kept: ShardIndex | None) -> None:
        """Make what a killed run left for DALI of a shard fit this run: `kept` is the shard's index if it is kept."""
        if not self._dali_index:
            storage = storage_for(self._output)
            storage.delete(storage.join(self._output, dali_index_name(name)))
        elif kept is not None:
            write_dali_index(self._output, name, kept)

    def _finished(self, name: str, inputs: str) -> tuple[ShardIndex, tuple[WrittenFile, ...]] | None:
        """Return the index and the files of a shard that is whole and made from these inputs, or None."""
        storage = storage_for(self._output)
        path = storage.join(self._output, index_name(name))
        shard = storage.stat(storage.join(self._output, name))
        if shard is None or storage.stat(path) is None:
            return None
        try:
            data = storage.read(path)
            index = ShardIndex.from_bytes(data, path)
        except CorruptionError:
            return None
        known = index.shard_bytes, index.compression, index.summary.get(_INPUTS)
        if known != (shard.size, self._compression, inputs) or shard.crc32c not in (None, index.shard_crc32c):
            return None
        files = [WrittenFile(name, shard.size, index.shard_crc32c), WrittenFile.of(index_name(name), data)]
        rejects = storage.stat(storage.join(self._output, rejects_name(name)))
        keys = storage.stat(storage.join(self._output, keys_name(name))) if self._keys else None
        if (rejects is not None) != bool(index.summary[_REJECTED]) or (keys is None and self._keys):
            return None
        for other, found in ((rejects_name(name), rejects), (keys_name(name), keys)):
            if found is not None:
                files.append(WrittenFile(other, found.size, found.crc32c))
        # Skipped inputs are read again if they are no longer tolerated.
        return (index, tuple(files)) if self._skip or not index.summary[_REJECTED] else None


def _check_size(reference: Reference, record: bytes | Sequence[bytes]) -> None:
    """Refuses a record that no reader could parse: pixels may be far more bytes than the image they come from."""
    size = len(record) if isinstance(record, bytes) else sum(map(len, record))
    if size > MAX_EXAMPLE_BYTES:
        raise BadRecordError(
            reference.origin,
            f"its record is too large: {size} bytes; a tf.train.Example has {MAX_EXAMPLE_BYTES} at most",
        )


def _refuse_duplicates(packs: Sequence[Pack], keep_equal: bool) -> None:
    """Raises SourceError where two neighbours have one key, unless equal ones are kept."""
    # In the shuffled order equal keys have equal positions, so they always meet in one shard, side by side.
    positions = np.concatenate([pack.positions for pack in packs])
    if not (positions[1:] == positions[:-1]).any():
        return
    references = itertools.chain.from_iterable(pack.references() for pack in packs)
    for one, other in itertools.pairwise(references):
        if one.key == other.key and not (keep_equal and not other.form):
            raise duplicate_keys(one, other)


def _inputs_digest(entries: Entries, labels: Labels, converter: Converter | ShardConverter, learned: Any = None) -> str:
    """Digest of what decides a shard's bytes: the converter, the classes, and what is known of every input, in order."""
    fields = dataclasses.asdict(converter)  # type: ignore[call-overload]
    parts = [type(converter).__name__, fields, labels.names, *([] if learned is None else [learned])]
    head = json.dumps(parts, sort_keys=True, default=str)
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    digest.update(entries.tobytes())
    return digest.hexdigest()
