"""Conversion of stored frames to records: verified data passes through unchanged, except for renumbered labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.converter import InputConverter, ShardContext
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
from tpudata.format.example.decode import read_list_kinds
from tpudata.format.example.wire import Value
from tpudata.format.shards.index import BLOCK_RECORDS
from tpudata.format.tfrecord.framing import FRAME_BYTES
from tpudata.format.tfrecord.gzip_blocks import measure_compressed_size
from tpudata.storage import storage_for

# Counts of all records together, which say nothing about a part of them.
_WHOLE_COUNTS = frozenset({"documents", "tokens", "padding", "dropped", "unknown"})


@dataclasses.dataclass
class StoredSummary:
    """Number of records by origin, in one shard or in all shards.

    Attributes:
        decoded_bytes: bytes of all records as tensors; each record counts as the mean of its split in the input.
        records: number of records by `StoredRecord.origin`.
    """

    decoded_bytes: int = 0
    records: dict[str, int] = dataclasses.field(default_factory=dict)

    def merge(self, other: StoredSummary) -> None:
        """Add what another summary has counted."""
        self.decoded_bytes += other.decoded_bytes
        for origin, count in other.records.items():
            self.records[origin] = self.records.get(origin, 0) + count

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, from which `summary_from_json` of the converter makes a summary."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class FrameConverter(InputConverter):
    """Base of the converters of stored records: reads frames and verifies them."""

    @property
    def record_overhead(self) -> int:
        """Minus the bytes of a frame: the plan adds a frame to each record, and these inputs include theirs."""
        return -FRAME_BYTES

    def read(self, packs: Sequence[Pack]) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
        """Yield the frames of packs, many neighbours with one read."""
        return read_packs(packs, is_checked=True)

    def extract_record(self, reference: Reference, frame: bytes) -> bytes:
        """Return the serialized record in a frame.

        Raises:
            BadRecordError: the frame is truncated, or its length or a checksum is wrong.
        """
        # The offset of a spooled record is in the spool, so messages also name its key.
        path = reference.origin if reference.spool else reference.path
        return remove_frame(frame, path, reference.offset)


@dataclasses.dataclass(frozen=True)
class DatasetConverter(FrameConverter):
    """Converter that passes on the records of datasets.

    Attributes:
        schema: schema of the records.
        label_numbers: by index of the dataset, as a string, the new label of each old one, both counted from 0; only for datasets
            whose labels change.
        label: name of the feature that holds the label; empty without a label.
        label_offset: label of the first class.
        decoded: by `StoredRecord.origin`, (decoded bytes, records) of the split in the input.
        carried: counts for the manifest besides records; the counts in `_WHOLE_COUNTS` hold only if every record is carried over.
        converted_before: inputs that the datasets' conversions stored in another encoding, by reason.
        tokenizer: (name, path) of each of the tokenizer's files.
        list_maxima: maximum number of entries of each feature of lists, except features for which a dataset does not state it.
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
        """Return the summary that `StoredSummary.to_json` wrote.

        Its decoded bytes, which `convert` does not count, are estimated: each record has the average of its split in the input.
        """
        summary = StoredSummary(records=dict(value["records"]))
        for origin, count in summary.records.items():
            split_bytes, split_record_count = self.decoded[origin]
            summary.decoded_bytes += round(split_bytes * count / max(1, split_record_count))
        return summary

    def features(self, summary: StoredSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema."""
        del summary, labels
        return self.schema

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: StoredSummary) -> bytes:
        """Return the record that the frame `data` holds, unchanged unless its label gets another number.

        Raises:
            BadRecordError: the frame is damaged, or a label that gets another number has no class.
        """
        del labels
        record = self.extract_record(reference, data)
        assert isinstance(reference.payload, StoredRecord)
        origin = reference.payload.origin
        new_labels = self.label_numbers.get(str(reference.payload.dataset))
        if new_labels is not None:
            record = self._renumber(reference, record, new_labels)
        summary.records[origin] = summary.records.get(origin, 0) + 1
        return record

    def counts(self, summary: StoredSummary) -> dict[str, int]:
        """Return the counts of the inputs' manifests, without the counts in `_WHOLE_COUNTS` unless every record is carried over."""
        has_every_record = sum(summary.records.values()) == sum(
            record_count for _, record_count in self.decoded.values()
        )
        return {name: count for name, count in self.carried.items() if has_every_record or name not in _WHOLE_COUNTS}

    def maxima(self, summary: StoredSummary) -> dict[str, int]:
        """Return the maximum number of entries of each feature of lists, which the inputs' manifests state."""
        del summary
        return dict(self.list_maxima)

    def count_converted(self) -> dict[str, int]:
        """Return the numbers of re-encoded inputs by reason, which the inputs' manifests state."""
        return dict(self.converted_before)

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields that determine the records, by name.

        The tokenizer is written as earlier versions wrote it: None for no files, a pair for one file.
        """
        files = self.tokenizer
        fields = super().deciding_fields()
        # The maxima go into the manifest, not into records.
        del fields["list_maxima"]
        return {**fields, "tokenizer": files[0] if len(files) == 1 else files or None}

    def files(self, context: ShardContext) -> dict[str, bytes]:
        """Return the tokenizer's files."""
        del context
        return {name: storage_for(path).read(path) for name, path in self.tokenizer}

    def _renumber(self, reference: Reference, record: bytes, new_labels: Sequence[int]) -> bytes:
        """Return a record with its labels renumbered; BadRecordError if a label is not a number or has no class."""
        example: dict[str, Value] = _decode(reference, record)
        values = example.get(self.label, [])
        try:
            class_numbers = [int(value) - self.label_offset for value in values]
            # A negative index would count from the end.
            if any(class_number < 0 for class_number in class_numbers):
                raise IndexError
            example[self.label] = [new_labels[class_number] + self.label_offset for class_number in class_numbers]
        # `int` raises OverflowError for infinity.
        except (IndexError, ValueError, OverflowError):
            raise BadRecordError(
                reference.origin,
                f"unknown label: {values!r}; its dataset has {count_text(len(new_labels), 'class', 'classes')}",
            ) from None
        return encode_example(example)


@dataclasses.dataclass(frozen=True)
class ForeignConverter(FrameConverter):
    """Converter that passes on the records of other programs, and learns their schema.

    Attributes:
        images: names of the features that hold images.
        raw: features that hold the bytes of arrays.
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
        """Return the fields that determine the records, by name.

        An empty `declared` is omitted: earlier versions lacked it, and --resume keeps their shards.
        """
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
        arrays = {array.name: array.feature for array in self.raw}
        declared = arrays | {declaration.name: declaration.feature for declaration in self.declared}
        schema = {
            name: declared.get(name) or statistics.make_feature(name, summary.records)
            for name, statistics in sorted(summary.features.items())
        }
        # As in other layouts, a list of labels has no number of classes.
        if self.label in schema and labels.names and schema[self.label].shape == ():
            schema[self.label] = dataclasses.replace(
                schema[self.label], num_classes=len(labels.names), label_offset=self.label_offset
            )
        return tuple(schema.values())

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: InferredSummary) -> bytes:
        """Return the serialized record that the frame `data` holds, unchanged, and count its features in `summary`.

        Raises:
            BadRecordError: the frame is damaged, the label is missing or of no class, or the features do not fit the declarations.
            FeatureError: a feature has values of a different kind, or a label map of a different dtype, from earlier records.
        """
        record = self.extract_record(reference, data)
        example = _decode(reference, record)
        if self.label is not None:
            self._check_label(reference, example.get(self.label), labels)
        try:
            # Most records have no empty list.
            list_kinds = None if all(example.values()) else read_list_kinds(record)
            for declaration in self.declared:
                values = example.get(declaration.name, [])
                declaration.check(values, "" if values or not list_kinds else list_kinds.get(declaration.name, ""))
            arrays = {array.name: array for array in self.raw}
            summary.add(example, reference.key, arrays, self.images, self.label_maps, list_kinds)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        return record

    def _check_label(self, reference: Reference, values: Value | None, labels: Labels) -> None:
        """Raise BadRecordError if a record has no label, or a label that is not the number of a class."""
        if values is None:
            raise BadRecordError(reference.origin, f"no feature {self.label!r}, which holds the class")
        largest_label = self.label_offset + len(labels.names) - 1
        wrong_labels = [
            value for value in values if not isinstance(value, int) or not self.label_offset <= value <= largest_label
        ]
        if wrong_labels or not values:
            got = repr(wrong_labels[0]) if wrong_labels else "no value"
            raise BadRecordError(
                reference.origin, f"unknown label: {got}; labels go from {self.label_offset} to {largest_label}"
            )


def estimate_ratio(compression: str | None, references: Iterable[Reference]) -> float:
    """Return the estimated ratio of the bytes of frames in a shard to their bytes in the input; 1.0 if shards are not compressed.

    Args:
        compression: compression of the shards, None or "gzip".
        references: a random sample of all records; if none of them can be read, the ratio is also 1.0.
    """
    if compression is None:
        return 1.0
    frames = [frame for _, frame in read_references(references) if isinstance(frame, bytes)]
    frame_bytes = sum(map(len, frames))
    blocks = (frames[start : start + BLOCK_RECORDS] for start in range(0, len(frames), BLOCK_RECORDS))
    return sum(map(measure_compressed_size, blocks)) / frame_bytes if frame_bytes else 1.0


def _decode(reference: Reference, record: bytes) -> dict[str, Value]:
    """Return the values of a record by feature; BadRecordError if it is not a `tf.train.Example`."""
    try:
        return decode_example(record, path=reference.path, offset=reference.offset)
    except CorruptionError as error:
        raise BadRecordError(reference.origin, f"{error.reason}; a dataset holds only tf.train.Examples") from None
