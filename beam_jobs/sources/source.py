"""The interface of a source, and the function that makes its references."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from beam_jobs.converter import RecordColumns
from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import Note
from beam_jobs.references.packs.listed_pack import ListedPack
from beam_jobs.references.reference import NO_FEATURES, SELF_DESCRIBING, WHOLE_FILE, Payload, Reference, key_digest
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.references.repeated_keys import KeyRows, Repeat
from tpudata.errors import SourceError
from tpudata.format import Feature

if TYPE_CHECKING:
    from beam_jobs.image_records.annotated.schema import AnnotationSchema

# What a source's `parts` and `units` yield, and `units` and `references` take. Each source has its own types; the pipeline
# only pickles the values and passes them on.
SourcePart: TypeAlias = Any
SourceUnit: TypeAlias = Any
# Facts that a scan collects about its part, such as ListFacts. `merge` adds the facts about another part.
ScanFacts: TypeAlias = Any


class Source(abc.ABC):
    """An input of one form: a frozen dataclass that is pickled to the workers, made after a look at a few bytes of the input.

    The methods `parts`, `units` and `references` list the records; the attributes describe them. A source overrides the attributes
    whose defaults do not describe its records.
    """

    @property
    def has_classes(self) -> bool:
        """Whether records have class names."""
        return False

    @property
    def several_labels(self) -> bool:
        """Whether a record may have any number of classes; otherwise each record has one class, if the source has classes."""
        return False

    @property
    def labels(self) -> Labels | None:
        """The classes if they are known before listing; None if they are collected from the references, or there are none."""
        return None

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return False

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of `Reference.features`; empty if references have none."""
        return ()

    @property
    def annotations(self) -> AnnotationSchema | None:
        """Schema of annotations, which references have in place of `features`; None without annotations."""
        return None

    @property
    def record_columns(self) -> RecordColumns:
        """The features of records that depend on the input."""
        return RecordColumns(self.several_labels, self.features, self.annotations)

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that names in the input stand for."""
        return frozenset()

    @property
    def folder_classes(self) -> bool:
        """Whether classes are names of folders."""
        return False

    @property
    def takes_label_type(self) -> bool:
        """Whether the source supports --label-type."""
        return False

    @property
    def takes_label_from(self) -> bool:
        """Whether the source supports --label-from."""
        return False

    def noting(self, note: Note) -> Source:
        """Return the source that calls `note` about surprising inputs in `units` and `references`; itself if it has no notes.

        Args:
            note: called with the kind of a note and an example, see `beam_jobs.references.notes`.
        """
        del note
        return self

    @abc.abstractmethod
    def parts(self) -> Iterable[SourcePart]:
        """Yield the input's parts in order, such as folders or archives. One worker calls this, and holds one part at a time."""

    @abc.abstractmethod
    def units(self, part: SourcePart, ignored: list[str]) -> Iterable[SourceUnit]:
        """Yield the units of a part, which are listed separately, in order. Called for each part, on any worker.

        The listing names its files by the `repr` of the unit, which must be unique and the same in every run: units are paths,
        tuples, named tuples or frozen dataclasses.

        Args:
            part: one of `parts()`.
            ignored: list to which this method appends the path of each file or folder that it skips because of its name.
        """

    @abc.abstractmethod
    def references(self, unit: SourceUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to each record of a unit.

        Args:
            unit: one of `units`.
            ignored: list to which this method appends the path of each file or member that it skips without an error, mostly
                because of its name.
            reject: called with the error of a record that gets no reference (a listed file that is missing, an unknown label, an
                image without its label). It may raise; if it returns, the listing continues without the record.
        """


class PackSource(Source):
    """A source that lists references by column, for small records: a Python object for each would cost more than the record."""

    @property
    def has_own_packs(self) -> bool:
        """Whether the source's packs are kept; otherwise its references are regrouped into packs of 4,096."""
        return False

    @abc.abstractmethod
    def packs(self, unit: SourceUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the records of a unit in packs of at most 4,096."""

    def references(self, unit: SourceUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield the references of `packs` one by one."""
        for pack in self.packs(unit, ignored, reject):
            yield from pack.references()

    @abc.abstractmethod
    def noting(self, note: Note) -> PackSource:
        """Return the source that calls `note`, see `Source.noting`."""


class Scan(Protocol):
    """Scan of one part of a ScannedSource.

    Attributes:
        facts: facts about the rows read so far; complete once `parts` has ended. Their `merge` adds the facts of another part.
    """

    facts: ScanFacts

    @property
    def held(self) -> int:
        """Number of rows that `take_rows` would return."""

    def parts(self) -> Iterator[SourcePart]:
        """Read the part from start to end, and yield the smaller parts that `Source.units` takes in place of it, in order."""

    def take_rows(self) -> KeyRows:
        """Return the digests of the keys of the rows read since the last call, each with its list and line."""


class ScannedSource(Source):
    """A source whose schema depends on the whole input: all parts are scanned before any unit is listed.

    Before the scan, `several_labels`, `labels`, `integer_labels` and `features` describe an input without rows.
    """

    @abc.abstractmethod
    def no_facts(self) -> ScanFacts:
        """Return empty facts, to which `merge` adds the facts about parts."""

    @abc.abstractmethod
    def scan(self, index: int, part: SourcePart) -> Scan:
        """Return the scan of a part. Called on any worker.

        Args:
            index: index of the part among all.
            part: one of `parts()`.
        """

    @abc.abstractmethod
    def apply_scans(self, facts: ScanFacts, parts: Iterable[SourcePart] | None = None) -> Source:
        """Return the source with its schema.

        Args:
            facts: facts about all parts.
            parts: the parts that the scans yielded, which the source's `parts` then yields; None if a pipeline passes them on.
        """

    @abc.abstractmethod
    def describe_repeat(self, repeat: Repeat, facts: ScanFacts) -> SourceError:
        """Return the error of two rows that have the same key.

        Args:
            repeat: the lists and lines of the two rows.
            facts: facts about all parts.
        """


def sum_blocks_before(files: Mapping[int, tuple[str, int]]) -> dict[int, int]:
    """Return the number of blocks in all files before each file, by index of the file.

    Args:
        files: by index of a file, its path and its number of blocks.
    """
    total = 0
    blocks_before: dict[int, int] = {}
    for index, (_, block_count) in sorted(files.items()):
        blocks_before[index] = total
        total += block_count
    return blocks_before


def make_reference(
    options: ConvertOptions,
    key: str,
    *,
    path: str,
    size: int,
    offset: int = WHOLE_FILE,
    split: str = "",
    labels: tuple[str, ...] = (),
    payload: Payload = SELF_DESCRIBING,
    crc32: int | None = None,
    features: Mapping[str, Any] = NO_FEATURES,
    data: bytes = b"",
) -> Reference:
    """Make a reference; if the input states no split, assign one with `--split`, or else the default.

    Args:
        options: options of the conversion, with the splits.
        key: the record's stable name, unique in the input.
        path: the file that holds the record.
        size: number of bytes of the record.
        offset: byte offset in the file; `WHOLE_FILE` if the file is the record.
        split: split that the input states, or empty.
        labels: names of the record's classes.
        payload: kind of the record's bytes; by default they describe themselves, as image files do.
        crc32: CRC-32 that the bytes must have; None if the input states none.
        features: extra features of the record, by name: numbers, strings, bytes, numpy arrays, and lists of these.
        data: the record's bytes if no range of the file holds them, as in compressed files; otherwise empty.
    """
    if not split:
        split = options.split.assign_split(key_digest(key)) if options.split else DEFAULT_SPLIT
    return Reference(key, split, labels, path, offset, size, payload, crc32, features, data)
