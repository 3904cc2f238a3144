"""Writing shards: one worker reads a shard's inputs, converts them, and writes the shard and its index in one pass."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from apache_beam.metrics import Metrics

from beam_jobs.append.entries import make_entries, mark_rejected
from beam_jobs.converter import Converter, ShardContext
from beam_jobs.options import SKIP
from beam_jobs.output.removal import give_up
from beam_jobs.planning.plan import Plan
from beam_jobs.references.packs.pack import Pack
from beam_jobs.run.progress import ProgressReport
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.duplicates.keys import make_duplicate_keys_error
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from beam_jobs.steps.shards.finished_shard import (
    INPUTS,
    RECORDS,
    REJECTED,
    find_finished,
    remove_shard,
    write_or_remove_dali_index,
)
from beam_jobs.steps.shards.group_by_shard import ShardKey
from beam_jobs.steps.shards.shard_conversion import ShardConversion
from tpudata.errors import SourceError
from tpudata.format import shard_name
from tpudata.format.layout import keys_name, shard_prefix
from tpudata.format.shards.keys import Entries, ShardKeys
from tpudata.format.shards.write_shard import write_shard_files
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for
from tpudata.storage.claims.hold import check_claim


class ShardResult(NamedTuple):
    """One finished shard, small enough to collect millions of them.

    Attributes:
        split: split that the shard belongs to.
        name: file name of the shard.
        record_count: number of records; 0 if no input became a record, so that no shard is written.
        bytes: size of the file.
        crc32c: checksum of the file.
        summary: the converter's summary of its records, as JSON because Beam cannot encode names that are not UTF-8.
        rejected: number of rejected inputs by kind.
        files: the shard and its other files, as written or found.
    """

    split: str
    name: str
    record_count: int
    bytes: int
    crc32c: int
    summary: str
    rejected: dict[str, int]
    files: tuple[WrittenFile, ...] = ()


class _Inputs(NamedTuple):
    """The inputs of a shard.

    Attributes:
        split: the shard's split.
        name: file name of the shard.
        packs: references to the inputs, in order.
        entries: the entry by which an append recognizes each input.
        digest: digest of everything that decides the shard's bytes.
    """

    split: str
    name: str
    packs: list[Pack]
    entries: Entries
    digest: str


class WriteShards(LimitedStep):
    """DoFn that writes the shard of each ((split, shard number), packs of references), and yields its ShardResult as a tuple.

    A shard is never empty: if no input becomes a record, it is not written, and rejected inputs are listed without it. A shard
    appears under its name whole or not at all, and a second attempt writes the same bytes, so a runner may retry or duplicate the
    work.

    Args:
        spec: the dataset to write.
        progress: gets the bytes of each input; None reports nothing.
    """

    def __init__(self, spec: DatasetSpec, progress: ProgressReport | None = None) -> None:
        super().__init__(spec.options.request_limits)
        self._spec = spec
        self._output = spec.options.output
        self._skips_bad_inputs = spec.options.on_bad_record == SKIP
        self._resumes = spec.options.resume or spec.options.append
        self._progress = progress or ProgressReport(folder=None)
        self._records_written = Metrics.counter("tpudata", "records")
        self._records_rejected = Metrics.counter("tpudata", "rejected")
        self._bytes_read = Metrics.counter("tpudata", "bytes_read")
        self._shards_written = Metrics.counter("tpudata", "shards_written")
        self._shards_kept = Metrics.counter("tpudata", "shards_kept")

    @holds_limits
    def process(
        self, element: tuple[ShardKey, Iterable[bytes]], plan: Plan, context: ShardContext
    ) -> Iterator[tuple[Any, ...]]:
        """Write one shard, unless an earlier run, which was killed, already finished it."""
        inputs = self._collect_inputs(element, plan, context)
        check_claim(self._output, self._spec.claim)
        result = self._keep_finished(inputs) if self._resumes else None
        yield tuple(result or self._write(inputs, context))

    def _collect_inputs(self, element: tuple[ShardKey, Iterable[bytes]], plan: Plan, context: ShardContext) -> _Inputs:
        """Return the inputs of a shard.

        Raises:
            SourceError: two inputs have the same key, and their payload's `may_repeat` is false. The run has failed for good, so
                its temporary files are removed.
        """
        (split, number), serialized_packs = element
        packs = list(map(Pack.from_bytes, serialized_packs))
        try:
            _check_duplicates(packs)
        except SourceError:
            # A retry also fails, so delete the temporary shards, which may be as large as the dataset.
            give_up(self._output, self._spec.claim)
            raise
        name = shard_name(
            shard_prefix(split, self._spec.append_number), number, plan.splits[split].shard_count, plan.suffix
        )
        entries = make_entries(packs)
        digest = _digest_inputs(entries, self._spec.converter.apply_context(context), context)
        return _Inputs(split, name, packs, entries, digest)

    def _keep_finished(self, inputs: _Inputs) -> ShardResult | None:
        """Return the result of a shard that a killed run has finished; None if it has to be written.

        In both cases, bring its index for DALI into line with this run's options, see `write_or_remove_dali_index`.
        """
        name, spec = inputs.name, self._spec
        finished = find_finished(
            self._output, name, inputs.digest, compression=spec.options.compression, needs_keys=spec.stores_keys
        )
        # If bad inputs are no longer skipped, they are read again, so that the first one is reported.
        if finished is not None and finished.rejected and not self._skips_bad_inputs:
            finished = None
        index = None if finished is None else finished.index
        # Needed even if the shard is written again: a killed run may have left an index for DALI that this run does not write.
        write_or_remove_dali_index(self._output, name, index, has_dali_index=spec.has_dali_index)
        if finished is None:
            return None
        self._shards_kept.inc()
        index = finished.index
        summary = json.dumps(finished.summary_json)
        size, checksum = index.shard_bytes, index.shard_crc32c
        return ShardResult(
            inputs.split, name, index.records, size, checksum, summary, finished.rejected, finished.files
        )

    def _write(self, inputs: _Inputs, context: ShardContext) -> ShardResult:
        """Convert the inputs, write the shard and the files that belong to it, and return its result."""
        conversion = ShardConversion(
            inputs.name,
            inputs.packs,
            self._spec.converter.apply_context(context),
            context,
            skips_bad_inputs=self._skips_bad_inputs,
            progress=self._progress,
        )
        records = conversion.records()
        first_record = next(records, None)
        if first_record is None:
            return self._finish_missing_shard(inputs, conversion)
        # A run that began with an empty folder and skips nothing has no rejects; looking for them costs an object store a request.
        may_have_rejects = self._skips_bad_inputs or self._resumes
        if may_have_rejects:
            conversion.rejects.remove_list_of_missing_shard(self._output)
        files: tuple[WrittenFile, ...]
        shard, files = write_shard_files(
            self._output,
            inputs.name,
            itertools.chain([first_record], records),
            # Called once the records have ended, when these counts are complete.
            lambda: {
                INPUTS: inputs.digest,
                RECORDS: conversion.summary.to_json(),
                REJECTED: conversion.rejects.counts(),
            },
            compression=self._spec.options.compression,
            dali_index=self._spec.has_dali_index,
            # Without --resume the folder was empty, so a shard of this name belongs to another run, or to an earlier attempt.
            replace=self._resumes,
        )
        # Rejects and keys may be written after the index: a resumed run keeps a shard only if its rejects and keys also exist.
        if may_have_rejects:
            files += conversion.rejects.write(self._output)
        if self._spec.stores_keys:
            mark_rejected(inputs.entries, conversion.rejected_rows)
            files += (self._write_keys(inputs.name, ShardKeys.of(inputs.entries, shard.crc32c)),)
        self._count(conversion)
        self._shards_written.inc()
        summary = json.dumps(conversion.summary.to_json())
        rejected = conversion.rejects.counts()
        return ShardResult(
            inputs.split, inputs.name, shard.records, shard.bytes, shard.crc32c, summary, rejected, files
        )

    def _finish_missing_shard(self, inputs: _Inputs, conversion: ShardConversion) -> ShardResult:
        """Finish a shard without records: list its rejected inputs, if any, remove files under its name, and return its result."""
        remove_shard(self._output, inputs.name)
        rejects, rows = conversion.rejects, conversion.rejected_rows
        mark_rejected(inputs.entries, rows)
        files = rejects.write_list_of_missing_shard(self._output, inputs.entries[rows]) if rows else ()
        self._count(conversion)
        summary = json.dumps(conversion.summary.to_json())
        rejected = rejects.counts()
        return ShardResult(
            inputs.split,
            inputs.name,
            record_count=0,
            bytes=0,
            crc32c=0,
            summary=summary,
            rejected=rejected,
            files=files,
        )

    def _count(self, conversion: ShardConversion) -> None:
        """Add the counts of a finished shard to the counters of the job."""
        self._bytes_read.inc(conversion.bytes_read)
        self._records_written.inc(conversion.record_count)
        self._records_rejected.inc(conversion.rejects.total)

    def _write_keys(self, name: str, keys: ShardKeys) -> WrittenFile:
        """Write the file of a shard's keys; `name` is the file name of the shard."""
        storage = storage_for(self._output)
        data = keys.to_bytes()
        with storage.create(storage.join(self._output, keys_name(name)), replace=self._resumes) as file:
            file.write(data)
        return WrittenFile.of(keys_name(name), data)


def _check_duplicates(packs: Sequence[Pack]) -> None:
    """Raise SourceError if two neighbouring references have the same key, and `may_repeat` of the second one's payload is false."""
    # In the shuffled order equal keys have equal positions, so they always meet in one shard, side by side.
    positions = np.concatenate([pack.positions for pack in packs])
    if not (positions[1:] == positions[:-1]).any():
        return
    references = itertools.chain.from_iterable(pack.references() for pack in packs)
    for reference, other in itertools.pairwise(references):
        if reference.key == other.key and not other.payload.may_repeat:
            raise make_duplicate_keys_error(reference, other)


def _digest_inputs(entries: Entries, converter: Converter, context: ShardContext) -> str:
    """Return a digest of everything that decides a shard's bytes: the converter, the context, and every input, in order."""
    fields = converter.deciding_fields()
    # Only a run that collects a vocabulary has characters.
    characters = [] if context.characters is None else [context.characters]
    head = json.dumps(
        [type(converter).__name__, fields, context.labels.names, *characters], sort_keys=True, default=str
    )
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    digest.update(entries.tobytes())
    return digest.hexdigest()
