"""Writing shards: one worker reads a shard's inputs, converts them, and writes the shard and its index in one pass."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs.labels import Labels
from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.packing import unpack
from beam_jobs.plan import Plan
from beam_jobs.progress import ProgressReport
from beam_jobs.reading import read_reference
from beam_jobs.reference import Reference, key_bytes
from beam_jobs.rejects import Rejects
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.format import Feature, ShardIndex, index_name, shard_name, write_shard
from tpudata.storage import storage_for

_INPUTS, _RECORDS, _REJECTED = "inputs", "records", "rejected"


class Summary(Protocol):
    """What a converter says about the records of a shard, or of a dataset."""

    decoded_bytes: int

    def merge(self, other: Any) -> None:
        """Adds what another summary has counted."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""


class Converter(Protocol):
    """Turns what references point to into records. A frozen dataclass: its fields decide what it writes."""

    def new_summary(self) -> Any:
        """A summary that has counted nothing."""

    def summary_from_json(self, value: dict[str, Any]) -> Any:
        """The summary that `Summary.to_json` wrote."""

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: Any) -> bytes | Sequence[bytes]:
        """The record of one input, whole or in parts; BadRecordError where it is refused."""

    def features(self, summary: Any, labels: Labels) -> tuple[Feature, ...]:
        """The schema of a dataset whose records `summary` has counted."""


class ShardResult(NamedTuple):
    """One finished shard, small enough to collect millions of.

    Attributes:
        split: its split.
        name: its file name.
        records: number of records.
        bytes: size of the file.
        crc32c: of the file.
        summary: what the converter says about its records, a JSON object.
        rejected: how many of its inputs were refused, by reason.
    """

    split: str
    name: str
    records: int
    bytes: int
    crc32c: int
    summary: dict[str, Any]
    rejected: dict[str, int]


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """Writes the shard of each ((split, shard number), packs of references) and yields its ShardResult, as a tuple.

    A shard appears under its name whole or not at all, and a second attempt writes the same bytes, so a runner may retry or
    duplicate the work.

    Args:
        options: of the conversion: where to write, and what happens to bad records.
        converter: makes the records.
        progress: is told of each record.
        keep_equal: inputs of one key and without a form are equal, and all are kept; any others of one key are an error.
    """

    def __init__(
        self,
        options: ConvertOptions,
        converter: Converter,
        progress: ProgressReport | None = None,
        *,
        keep_equal: bool = False,
    ) -> None:
        super().__init__()
        self._keep_equal = keep_equal
        self._output = options.output
        self._resume = options.resume
        self._skip = options.on_bad_record == SKIP
        self._converter = converter
        self._progress = progress or ProgressReport(None)
        self._records_written = Metrics.counter("tpudata", "records")
        self._records_rejected = Metrics.counter("tpudata", "rejected")
        self._bytes_read = Metrics.counter("tpudata", "bytes_read")
        self._shards_written = Metrics.counter("tpudata", "shards_written")
        self._shards_kept = Metrics.counter("tpudata", "shards_kept")

    def process(
        self, element: tuple[tuple[str, int], Iterable[bytes]], plan: Plan, labels: Labels
    ) -> Iterator[tuple[Any, ...]]:
        """Writes one shard."""
        (split, number), packs = element
        packs = list(packs)
        name = shard_name(split, number, plan.splits[split].count)
        inputs = _inputs_digest(_references(packs, self._keep_equal), labels, self._converter)
        kept = self._finished(name, inputs) if self._resume else None
        if kept is not None:
            self._shards_kept.inc()
            rejected = dict(kept.summary[_REJECTED])
            summary = dict(kept.summary[_RECORDS])
            yield (split, name, kept.records, kept.shard_bytes, kept.shard_crc32c, summary, rejected)
            return
        counted = self._converter.new_summary()
        rejects = Rejects(name)
        shard = write_shard(
            self._output,
            name,
            self._records(_references(packs, self._keep_equal), labels, counted, rejects),
            lambda: {_INPUTS: inputs, _RECORDS: counted.to_json(), _REJECTED: rejects.counts()},
        )
        # The index is there now; a resumed run holds the shard for finished only with its rejects beside it.
        rejects.write(self._output)
        self._shards_written.inc()
        yield (split, name, shard.records, shard.bytes, shard.crc32c, counted.to_json(), rejects.counts())

    def _records(
        self, references: Iterable[Reference], labels: Labels, summary: Any, rejects: Rejects
    ) -> Iterator[bytes | Sequence[bytes]]:
        bytes_read = records = 0
        for reference in references:
            try:
                data = read_reference(reference)
                record = self._converter.convert(reference, labels, data, summary)
            except BadRecordError as error:
                if not self._skip:
                    raise
                rejects.add(error)
                continue
            bytes_read += len(data)
            self._progress.add(len(data))
            records += 1
            yield record
        if not records:
            raise SourceError(
                f"{rejects.name}: every one of its {rejects.total} inputs was refused, and a shard is never empty."
                f" The first: {rejects.first}"
            )
        self._bytes_read.inc(bytes_read)
        self._records_written.inc(records)
        self._records_rejected.inc(rejects.total)
        self._progress.flush()

    def _finished(self, name: str, inputs: str) -> ShardIndex | None:
        """The index of a shard that is whole and made from these inputs, or None."""
        storage = storage_for(self._output)
        path = storage.join(self._output, index_name(name))
        shard = storage.stat(storage.join(self._output, name))
        if shard is None or storage.stat(path) is None:
            return None
        try:
            index = ShardIndex.from_bytes(storage.read(path), path)
        except CorruptionError:
            return None
        same = index.shard_bytes == shard.size and index.summary.get(_INPUTS) == inputs
        complete = same and (not index.summary[_REJECTED] or Rejects(name).written(self._output))
        # Skipped inputs are looked at again where they are no longer tolerated.
        return index if complete and (self._skip or not index.summary[_REJECTED]) else None


def _references(packs: Iterable[bytes], keep_equal: bool) -> Iterator[Reference]:
    """The references of a shard; SourceError where two have one key, unless equal ones are kept."""
    # Equal keys have equal positions, so they always meet in one shard, side by side.
    previous: Reference | None = None
    for reference in itertools.chain.from_iterable(map(unpack, packs)):
        equal = keep_equal and not reference.form
        if previous is not None and previous.key == reference.key and not equal:
            raise SourceError(
                f"{previous.origin} and {reference.origin} have the same key {reference.key!r}. Every input needs its own."
            )
        previous = reference
        yield reference


def _inputs_digest(references: Iterable[Reference], labels: Labels, converter: Converter) -> str:
    """Digest of what decides a shard's bytes: the converter, the classes, and what is known of every input, in order."""
    fields = dataclasses.asdict(converter)  # type: ignore[call-overload]
    head = json.dumps([type(converter).__name__, fields, labels.names], sort_keys=True, default=str)
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    for reference in references:
        known = (reference.key, *reference.labels, str(reference.size), reference.form, reference.extra)
        digest.update(key_bytes("\0".join(known) + "\n"))
    return digest.hexdigest()
