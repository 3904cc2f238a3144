"""The interface of converters, which turn the inputs of a shard into its records."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import RejectInput
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature
from tpudata.format.example.wire import MAX_EXAMPLE_BYTES

if TYPE_CHECKING:
    from beam_jobs.image_records.annotated.schema import AnnotationSchema

# A serialized tf.train.Example, whole or in parts to be concatenated.
Record: TypeAlias = bytes | Sequence[bytes]
# A Summary. The interface takes any, since each converter takes only the class that its `new_summary` returns.
OwnSummary: TypeAlias = Any
# An input of a shard with its bytes, or a pack of inputs with their concatenated bytes, from `Converter.read`.
Input: TypeAlias = tuple[Any, bytes]


@dataclasses.dataclass(frozen=True)
class RecordColumns:
    """Features of the records that depend on the input.

    Attributes:
        several_labels: whether a record has a list of classes, which may be empty, instead of one class.
        features: schema of `Reference.features`, which records store.
        annotations: schema of annotations, in place of `features`; None without annotations.
    """

    several_labels: bool = False
    features: tuple[Feature, ...] = ()
    annotations: AnnotationSchema | None = None


@dataclasses.dataclass(frozen=True)
class ShardContext:
    """Facts about all inputs, known before the first shard is written.

    Attributes:
        labels: classes of all inputs; empty without classes.
        characters: all characters of the text, if they are the tokenizer's vocabulary; otherwise None.
        columns: columns of the records, if a scan in the pipeline found them; None if the converter has them already.
    """

    labels: Labels
    characters: str | None = None
    columns: RecordColumns | None = None


class Summary(Protocol):
    """Counts of a converter for the records of a shard, or of a dataset.

    Attributes:
        decoded_bytes: size of all records once they are decoded.
    """

    decoded_bytes: int

    def merge(self, other: OwnSummary) -> None:
        """Add another summary of the same class."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; its `converted`, if any, counts re-encoded inputs by reason."""


class Converter(abc.ABC):
    """Converter of a shard's inputs to records. Subclasses are frozen dataclasses, whose fields determine the records."""

    @property
    @abc.abstractmethod
    def record_overhead(self) -> int:
        """Approximate bytes of a record in a shard in addition to its content and to the strings that `Conversion.extra_bytes`
        estimates, such as the names of its file and its class.
        """

    @abc.abstractmethod
    def new_summary(self) -> Summary:
        """Return an empty summary."""

    @abc.abstractmethod
    def summary_from_json(self, value: dict[str, Any]) -> Summary:
        """Return the summary that `Summary.to_json` wrote."""

    @abc.abstractmethod
    def features(self, summary: OwnSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema of a dataset whose records are counted in `summary`."""

    @abc.abstractmethod
    def records(
        self, inputs: Iterable[Input], context: ShardContext, summary: OwnSummary, reject: RejectInput
    ) -> Iterator[Record]:
        """Yield the records of a shard, which may be more or fewer than its inputs.

        Args:
            inputs: inputs of the shard, in order.
            context: facts about all inputs.
            summary: the shard's Summary, to which this method adds the records.
            reject: called with the reference of a rejected input and its error; if it returns, the input is omitted.
        """

    @abc.abstractmethod
    def read(self, packs: Sequence[Pack]) -> Iterator[tuple[Any, bytes | BadRecordError]]:
        """Yield the inputs of packs in order with their bytes, and for one that cannot be read, its Reference with the error."""

    def apply_columns(self, columns: RecordColumns) -> Converter:
        """Return the converter for records of these columns; by default this converter itself.

        Raises:
            UsageError: the options do not fit these columns.
        """
        del columns
        return self

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields that determine the records, by name: a resumed run keeps shards that were written with equal fields."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    def apply_context(self, context: ShardContext) -> Converter:
        """Return the converter with the columns that a scan in the pipeline found, if any."""
        return self if context.columns is None else self.apply_columns(context.columns)

    def manifest_options(self, context: ShardContext) -> dict[str, Any]:
        """Return additional options for the manifest, once all inputs are known; by default none."""
        del context
        return {}

    def counts(self, summary: OwnSummary) -> dict[str, int]:
        """Return additional counts for the manifest; by default none."""
        del summary
        return {}

    def maxima(self, summary: OwnSummary) -> dict[str, int]:
        """Return the length of the longest list by feature, for the features whose list lengths the summary records.

        By default there are none.
        """
        del summary
        return {}

    def warnings(self, summary: OwnSummary) -> dict[str, str]:
        """Return warnings about the records for the user, one line each, by kind; by default none."""
        del summary
        return {}

    def count_converted(self) -> dict[str, int]:
        """Return the number of inputs that earlier conversions re-encoded, by reason; they are added to the counts of this one.

        By default none.
        """
        return {}

    def files(self, context: ShardContext) -> dict[str, bytes]:
        """Return the contents of the files that are kept next to the shards, by name; by default there are none."""
        del context
        return {}


def check_extra(extra: Iterable[Feature], used_names: Collection[str]) -> None:
    """Check that records can have the features of references.

    Args:
        extra: schema of the references' features.
        used_names: names of the other features of records.

    Raises:
        UsageError: a name is used already, or records cannot have a shape.
    """
    names = set(used_names)
    for feature in extra:
        if feature.name in names:
            raise UsageError(
                f"the column {feature.name!r} has the name of a feature that is written already. Rename the column."
            )
        if not (feature.is_static or feature.is_image_file or feature.shape == (None,)):
            raise UsageError(
                f"the extra feature {feature.name!r}: unsupported shape (got {feature.shape}, expected a static shape or (None,),"
                " or encoding image or label_map). Store it flat."
            )
        names.add(feature.name)


def estimate_overhead(extra: Sequence[Feature]) -> int:
    """Return the approximate number of bytes of these features in a record, without strings and lists."""
    # Of the 14 bytes, 10 are tags and lengths, and 4 a small value.
    return sum(len(feature.name) + 14 for feature in extra)


class InputConverter(Converter):
    """Converter of each input to one record."""

    @abc.abstractmethod
    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: OwnSummary) -> Record:
        """Return the record of one input.

        Args:
            reference: reference to the input.
            labels: classes of all inputs; empty without classes.
            data: bytes of the input.
            summary: the shard's Summary, to which the record is added.

        Raises:
            BadRecordError: the input is rejected.
        """

    def read(self, packs: Sequence[Pack]) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
        """Yield the inputs, read sequentially from a disk, concurrently from an object store."""
        return read_references(itertools.chain.from_iterable(pack.references() for pack in packs))

    def records(
        self, inputs: Iterable[Input], context: ShardContext, summary: OwnSummary, reject: RejectInput
    ) -> Iterator[Record]:
        """Yield a record for each input that is not rejected."""
        convert, labels = self.convert, context.labels
        for reference, data in inputs:
            try:
                record = convert(reference, labels, data, summary)
                _check_size(reference, record)
            except BadRecordError as error:
                reject(reference, error)
                continue
            yield record


def _check_size(reference: Reference, record: Record) -> None:
    """Raise BadRecordError if a record is too large to parse: decoded pixels may be far larger than the image."""
    size = len(record) if isinstance(record, bytes) else sum(map(len, record))
    if size > MAX_EXAMPLE_BYTES:
        raise BadRecordError(
            reference.origin,
            f"its record is too large: {size} bytes; a tf.train.Example has {MAX_EXAMPLE_BYTES} at most",
        )
