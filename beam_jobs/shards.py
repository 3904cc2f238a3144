"""Writing shards: one worker reads a shard's inputs, converts them, and writes the shard and its index in one pass."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs.labels import Labels
from beam_jobs.plan import Plan
from beam_jobs.reference import WHOLE_FILE, Reference, key_bytes
from tpudata.errors import CorruptionError, SourceError
from tpudata.format import Feature, ShardIndex, index_name, shard_name, write_shard
from tpudata.storage import storage_for

_INPUTS, _RECORDS = "inputs", "records"


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

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: Any) -> bytes:
        """The record of one input; BadRecordError where it is refused."""

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
    """

    split: str
    name: str
    records: int
    bytes: int
    crc32c: int
    summary: dict[str, Any]


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """Writes the shard of each ((split, shard number), references) and yields its ShardResult, as a tuple.

    A shard appears under its name whole or not at all, and a second attempt writes the same bytes, so a runner may retry or
    duplicate the work.

    Args:
        output: the dataset's folder.
        converter: makes the records.
        resume: a shard that an earlier run finished from the same inputs is kept.
    """

    def __init__(self, output: str, converter: Converter, resume: bool) -> None:
        super().__init__()
        self._output = output
        self._converter = converter
        self._resume = resume
        self._records_written = Metrics.counter("tpudata", "records")
        self._bytes_read = Metrics.counter("tpudata", "bytes_read")
        self._shards_written = Metrics.counter("tpudata", "shards_written")
        self._shards_kept = Metrics.counter("tpudata", "shards_kept")

    def process(
        self, element: tuple[tuple[str, int], Iterable[Any]], plan: Plan, labels: Labels
    ) -> Iterator[tuple[Any, ...]]:
        """Writes one shard."""
        (split, number), references = element
        ordered = [Reference(*reference) for reference in sorted(references)]
        _refuse_duplicates(ordered)
        name = shard_name(split, number, plan.splits[split].count)
        inputs = _inputs_digest(ordered, labels, self._converter)
        kept = self._finished(name, inputs) if self._resume else None
        if kept is not None:
            self._shards_kept.inc()
            yield (split, name, kept.records, kept.shard_bytes, kept.shard_crc32c, dict(kept.summary[_RECORDS]))
            return
        summary = self._converter.new_summary()
        shard = write_shard(
            self._output,
            name,
            self._records(ordered, labels, summary),
            lambda: {_INPUTS: inputs, _RECORDS: summary.to_json()},
        )
        self._shards_written.inc()
        yield (split, name, shard.records, shard.bytes, shard.crc32c, summary.to_json())

    def _records(self, references: Iterable[Reference], labels: Labels, summary: Any) -> Iterator[bytes]:
        for reference in references:
            data = _read(reference)
            yield self._converter.convert(reference, labels, data, summary)
            self._bytes_read.inc(len(data))
            self._records_written.inc()

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
        return index if same else None


def _read(reference: Reference) -> bytes:
    if reference.data:
        return reference.data
    storage = storage_for(reference.path)
    if reference.offset == WHOLE_FILE:
        return storage.read(reference.path)
    return storage.read_range(reference.path, reference.offset, reference.size)


def _refuse_duplicates(ordered: list[Reference]) -> None:
    # Equal keys have equal positions, so they always meet in one shard, side by side.
    for one, other in itertools.pairwise(ordered):
        if one.key == other.key:
            raise SourceError(f"{one.path} and {other.path} have the same key {one.key!r}. Every input needs its own.")


def _inputs_digest(ordered: Iterable[Reference], labels: Labels, converter: Converter) -> str:
    """Digest of what decides a shard's bytes: the converter, the classes, and what is known of every input, in order."""
    fields = dataclasses.asdict(converter)  # type: ignore[call-overload]
    head = json.dumps([type(converter).__name__, fields, labels.names], sort_keys=True)
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    for reference in ordered:
        known = (reference.key, *reference.labels, str(reference.size), reference.form, reference.extra)
        digest.update(b"\0".join(key_bytes(part) for part in known) + b"\n")
    return digest.hexdigest()
