"""Conversion of frames to records: their bytes pass through unchanged after their checksums are verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.converter import InputConverter
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_packs
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference
from beam_jobs.stored_records.foreign.declared_feature import DeclaredFeature
from beam_jobs.stored_records.foreign.inferred_features import InferredSummary
from beam_jobs.stored_records.frames import remove_frame
from beam_jobs.stored_records.options import RawFeature
from beam_jobs.stored_records.stored_record import StoredRecord
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.format import Feature, decode_example, encode_example
from tpudata.format.example.wire import Value
from tpudata.format.shards.index import BLOCK_RECORDS
from tpudata.format.tfrecord.framing import FRAME_BYTES
from tpudata.format.tfrecord.gzip_blocks import packed_size
from tpudata.storage import storage_for

# Counts that hold for all records together, and for no part of them.
_WHOLE_COUNTS = frozenset({"documents", "tokens", "padding", "dropped", "unknown"})


@dataclasses.dataclass
class StoredSummary:
    """Number of a shard's records by origin.

    Attributes:
        decoded_bytes: bytes of all records as tensors; each record counts the mean of its split.
        records: by origin.
    """

    decoded_bytes: int = 0
    records: dict[str, int] = dataclasses.field(default_factory=dict)

    def merge(self, other: StoredSummary) -> None:
        """Add what another summary has counted."""
        self.decoded_bytes += other.decoded_bytes
        for origin, count in other.records.items():
            self.records[origin] = self.records.get(origin, 0) + count

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class FrameConverter(InputConverter):
    """Base of the converters of stored records."""

    @property
    def record_overhead(self) -> int:
        """Bytes that cancel the plan's frame: the bytes of inputs include their frames already."""
        return -FRAME_BYTES

    def read(self, packs: Sequence[Pack]) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
        """Yield the frames of packs, many neighbours with one read."""
        return read_packs(packs, is_checked=True)

    def data(self, reference: Reference, frame: bytes) -> bytes:
        """Return the serialized record of a frame.

        Raises:
            BadRecordError: its checksums do not fit.
        """
        if reference.spool:
            return remove_frame(frame, reference.origin, reference.offset)
        return remove_frame(frame, reference.path, reference.offset)


@dataclasses.dataclass(frozen=True)
class DatasetConverter(FrameConverter):
    """Passes on the records of datasets.

    Attributes:
        schema: schema of all of them.
        label_numbers: by index of the dataset, the new label of each old one, both counted from 0; only of datasets whose
            labels change.
        label: name of the feature of the label, if labels change.
        label_offset: label of the first class.
        decoded: by origin, (decoded bytes, records) of the split in the input.
        carried: counts of the manifest besides records, if every record is carried over.
        converted_before: inputs that the datasets' conversions stored in another encoding, by reason.
        tokenizer: (name, path) of each of the tokenizer's files.
        list_maxima: the most entries of each feature of lists; without those that a dataset does not state.
    """

    schema: tuple[Feature, ...]
    label_numbers: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    label: str = ""
    label_offset: int = 0
    decoded: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    carried: Mapping[str, int] = dataclasses.field(default_factory=dict)
    converted_before: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tokenizer: tuple[tuple[str, str], ...] = ()
    list_maxima: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def new_summary(self) -> StoredSummary:
        """Return a summary that has counted nothing."""
        return StoredSummary()

    def summary_from_json(self, value: dict[str, Any]) -> StoredSummary:
        """Return the summary that `StoredSummary.to_json` wrote, its decoded bytes filled in."""
        summary = StoredSummary(records=dict(value["records"]))
        for origin, count in summary.records.items():
            size, records = self.decoded[origin]
            summary.decoded_bytes += round(size * count / max(1, records))
        return summary

    def features(self, summary: StoredSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema."""
        del summary, labels
        return self.schema

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: StoredSummary) -> bytes:
        """Return the record of a frame: its own bytes, unless its label gets another number."""
        del labels
        record = self.data(reference, data)
        assert isinstance(reference.payload, StoredRecord)
        numbers, origin = self.label_numbers.get(str(reference.payload.dataset)), reference.payload.origin
        if numbers is not None:
            record = self._renumber(reference, record, numbers)
        summary.records[origin] = summary.records.get(origin, 0) + 1
        return record

    def counts(self, summary: StoredSummary) -> dict[str, int]:
        """Return the carried-over counts: those of documents and tokens only if every record of the datasets is."""
        is_whole = sum(summary.records.values()) == sum(records for _, records in self.decoded.values())
        return {name: count for name, count in self.carried.items() if is_whole or name not in _WHOLE_COUNTS}

    def maxima(self, summary: StoredSummary) -> dict[str, int]:
        """Return the carried-over maxima of lists."""
        del summary
        return dict(self.list_maxima)

    def count_converted(self) -> dict[str, int]:
        """Return the carried-over counts of re-encoded inputs."""
        return dict(self.converted_before)

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields, with the tokenizer as earlier versions have it: its file, or None."""
        files = self.tokenizer
        fields = super().deciding_fields()
        # They decide no record.
        del fields["list_maxima"]
        return {**fields, "tokenizer": files[0] if len(files) == 1 else files or None}

    def files(self, context: Any) -> dict[str, bytes]:
        """Return the tokenizer's files."""
        del context
        return {name: storage_for(path).read(path) for name, path in self.tokenizer}

    def _renumber(self, reference: Reference, record: bytes, new_labels: Sequence[int]) -> bytes:
        """Return a record with its labels replaced by their new numbers; BadRecordError if one has no class."""
        example: dict[str, Value] = _decode(reference, record)
        values = example.get(self.label, [])
        try:
            class_numbers = [int(value) - self.label_offset for value in values]
            if any(class_number < 0 for class_number in class_numbers):
                raise IndexError
            example[self.label] = [new_labels[class_number] + self.label_offset for class_number in class_numbers]
        except (IndexError, ValueError):
            raise BadRecordError(
                reference.origin,
                f"unknown label: {values!r}; its dataset has {count_text(len(new_labels), 'class', 'classes')}",
            ) from None
        return encode_example(example)


@dataclasses.dataclass(frozen=True)
class ForeignConverter(FrameConverter):
    """Passes on the records of other programs, and learns their schema.

    Attributes:
        images: names of the features that hold images.
        raw: features that hold arrays.
        label_maps: names of the features that hold label maps.
        declared: features whose kind and shape are given.
        label: name of the feature that holds the class, if there are classes.
        label_offset: label of the first class.
    """

    images: tuple[str, ...] = ()
    raw: tuple[RawFeature, ...] = ()
    label_maps: tuple[str, ...] = ()
    declared: tuple[DeclaredFeature, ...] = ()
    label: str | None = None
    label_offset: int = 0

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields by name; without those that earlier versions lacked if they are empty."""
        fields = super().deciding_fields()
        if not self.declared:
            del fields["declared"]
        return fields

    def new_summary(self) -> InferredSummary:
        """Return a summary that has counted nothing."""
        return InferredSummary()

    def summary_from_json(self, value: dict[str, Any]) -> InferredSummary:
        """Return the summary that `InferredSummary.to_json` wrote."""
        return InferredSummary.from_json(value)

    def features(self, summary: InferredSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema that all records share, in the order of the names."""
        declared = {raw.name: raw.feature for raw in self.raw} | {
            feature.name: feature.feature for feature in self.declared
        }
        schema = {
            name: declared.get(name) or statistics.feature(name, summary.records)
            for name, statistics in sorted(summary.features.items())
        }
        if self.label in schema and labels.names and schema[self.label].shape == ():
            schema[self.label] = dataclasses.replace(
                schema[self.label], num_classes=len(labels.names), label_offset=self.label_offset
            )
        return tuple(schema.values())

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: InferredSummary) -> bytes:
        """Return the record of a frame: its own bytes."""
        record = self.data(reference, data)
        example = _decode(reference, record)
        if self.label is not None:
            self._check_label(reference, example.get(self.label), labels)
        try:
            for declared in self.declared:
                declared.check(example.get(declared.name, []))
            raw = {raw.name: raw for raw in self.raw}
            summary.add(example, reference.key, raw, self.images, self.label_maps)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        return record

    def _check_label(self, reference: Reference, values: Value | None, labels: Labels) -> None:
        """Raise BadRecordError if a record has no label, or one outside of the classes."""
        if values is None:
            raise BadRecordError(reference.origin, f"no feature {self.label!r}, which holds the class")
        largest_label = self.label_offset + len(labels.names) - 1
        wrong = [
            value for value in values if not isinstance(value, int) or not self.label_offset <= value <= largest_label
        ]
        if wrong or not values:
            got = repr(wrong[0]) if wrong else "no value"
            raise BadRecordError(
                reference.origin, f"unknown label: {got}; labels go from {self.label_offset} to {largest_label}"
            )


def estimate_ratio(compression: str | None, references: Iterable[Reference]) -> float:
    """Estimate the bytes of records in a shard over those of their frames; 1.0 if none can be read.

    Args:
        compression: compression of the shards, None or "gzip".
        references: a fair sample of all records.
    """
    if compression is None:
        return 1.0
    frames = [frame for _, frame in read_references(references) if isinstance(frame, bytes)]
    before = sum(map(len, frames))
    blocks = (frames[start : start + BLOCK_RECORDS] for start in range(0, len(frames), BLOCK_RECORDS))
    return sum(map(packed_size, blocks)) / before if before else 1.0


def _decode(reference: Reference, record: bytes) -> dict[str, Value]:
    try:
        return decode_example(record, path=reference.path, offset=reference.offset)
    except CorruptionError as error:
        raise BadRecordError(reference.origin, f"{error.reason}; a dataset holds nothing else") from None
