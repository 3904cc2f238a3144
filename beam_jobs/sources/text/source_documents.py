"""Documents of an installed package's source, converted to references for text.

With a shuffle, small documents are spooled by position, like documents of files (beam_jobs.sources.text.source): otherwise a shard
of a million documents would take a million reads, and in an object store as many requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from beam_jobs.options import ConvertOptions
from beam_jobs.options.labels import LABEL, TextLabelOptions
from beam_jobs.references.labels import NO_LABELS, Labels
from beam_jobs.references.notes import Note
from beam_jobs.references.packs.listed_pack import NOT_HELD, ListedPack
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_packs
from beam_jobs.references.reference import NO_FEATURES, SELF_DESCRIBING, WHOLE_FILE, Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.installed.installed_sources import (
    DOCUMENTS,
    list_installed_names,
    load_source,
    make_unknown_source_error,
    open_installed_source,
)
from beam_jobs.sources.installed.source_checks import list_parts, list_references, list_units
from beam_jobs.sources.options import TextSourceOptions
from beam_jobs.sources.source import PackSource, ScannedSource, Source, SourcePart, SourceUnit
from beam_jobs.sources.text.runs import divide_run, gather_runs
from beam_jobs.sources.text.source import SMALL_BYTES
from beam_jobs.text_files.document_form import FILE, PLAIN_TEXT, RowForm
from beam_jobs.text_files.options import AUTO, TextOptions
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature

_WHOLE_FILE_TEXT = RowForm(FILE)
# Number of documents from which a run ends. Each is a reference, of about 1 kB with its features.
_MAX_RUN_DOCUMENTS = 1 << 14


@dataclasses.dataclass(frozen=True)
class SourceDocuments(PackSource):
    """The documents that a source of an installed package lists.

    Sequences of a fixed length join documents, so classes and extra features are omitted there.

    Attributes:
        options: options of the conversion, which seed the order.
        source: the source.
        text: form and fields of documents; its `labels` are the defaults if records store no classes.
        classes: mapping from labels to class names.
        has_several_labels: whether a document may have any number of classes.
        schema: schema of the extra features of documents.
    """

    options: ConvertOptions
    source: Source
    text: TextOptions
    classes: Classes
    has_several_labels: bool
    schema: tuple[Feature, ...]

    @classmethod
    def open(cls, options: ConvertOptions, text: TextOptions, source_options: TextSourceOptions) -> SourceDocuments:
        """Open the source.

        Args:
            options: options of the conversion.
            text: form and fields of documents.
            source_options: the source's name and arguments.

        Raises:
            UsageError: there is no such source, its arguments or the options do not fit it, or an option is for files of text.
            SourceError: the file of `--labels` is invalid.
        """
        # `source` is not None: this class is opened only with --source.
        name = str(source_options.source)
        installed = load_source(DOCUMENTS, name)
        if installed is None:
            raise make_unknown_source_error(DOCUMENTS, name, list_installed_names(DOCUMENTS))
        _reject_options_of_files(text, name)
        options_by_field = {"options": options, "text_options": text}
        source = open_installed_source(name, installed, source_options.source_args, options_by_field)
        if isinstance(source, ScannedSource):
            raise UsageError(f"--source={name}: a ScannedSource is for images. Derive it from Source.")
        # Rows of a fixed length join documents, so they have no classes.
        labels = text.labels if source.has_classes and not text.row_lengths else TextLabelOptions()
        if text.labels.labels_file is not None and not source.has_classes:
            raise UsageError(f"--labels: the documents of --source={name} have no classes. Omit the flag.")
        if labels.has_classes and any(field.name == LABEL for field in text.record_fields):
            raise UsageError(
                f"--field {LABEL}: {LABEL} is the name of the class in the records. Omit it; --source={name} has classes."
            )
        return cls(
            options,
            source,
            dataclasses.replace(text, labels=labels),
            _open_classes(source, labels),
            has_several_labels=labels.has_classes and source.several_labels,
            schema=() if text.row_lengths else source.features,
        )

    @property
    def has_classes(self) -> bool:
        """Whether documents have classes."""
        return self.text.labels.has_classes

    @property
    def several_labels(self) -> bool:
        """Whether a document may have any number of classes."""
        return self.has_several_labels

    @property
    def labels(self) -> Labels | None:
        """The classes of `--labels FILE` or of the source, None if both lack names; no classes if documents have no class."""
        return self.classes.labels if self.has_classes else NO_LABELS

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return self.has_classes and self.classes.collects_integers

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the extra features of documents."""
        return self.schema

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that names in the source's input stand for."""
        return self.source.named_splits

    @property
    def has_own_packs(self) -> bool:
        """True: packs end where runs end, and runs are not joined."""
        return True

    def noting(self, note: Note) -> SourceDocuments:
        """Return the source that passes `note` to the package's source."""
        return dataclasses.replace(self, source=self.source.noting(note))

    def parts(self) -> Iterable[SourcePart]:
        """Return the parts of the package's source."""
        return list_parts(self.source)

    def units(self, part: SourcePart, ignored: list[str]) -> Iterable[SourceUnit]:
        """Return the units of the package's source."""
        return list_units(self.source, part, ignored)

    def packs(self, unit: SourceUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the documents of a unit by column, see `PackSource`.

        With a shuffle, the documents of each run are sorted by position in the shuffled order.
        Documents that are too large, or whose classes are not what the source declares, are rejected.
        """
        documents = self._list_documents(unit, ignored, reject)
        for run in gather_runs(documents, lambda reference: (reference.size, 1), _MAX_RUN_DOCUMENTS):
            yield from divide_run(self._list_run(run), self.options)

    def _list_run(self, run: Sequence[Reference]) -> ListedPack:
        """Return documents as a pack of references; it holds the bytes that documents carry.

        With a shuffle, it also holds the bytes of small documents.
        """
        # Positions in the order are computed from the digests later.
        pack = Pack.of(run, np.zeros(len(run), np.uint64))
        buffers = [reference.data for reference in run]
        if self.options.shuffle:
            small_rows = np.array([row for row, reference in enumerate(run) if _is_small(reference)], np.intp)
            for row, data in zip(small_rows.tolist(), _read_rows(pack, small_rows), strict=True):
                buffers[row] = data
        # Each held document has its own buffer, and starts at 0 in it.
        starts = np.array([0 if data else NOT_HELD for data in buffers], np.int64)
        return ListedPack(pack, pack.keys.digests(), buffers, np.arange(len(run)), starts)

    def _list_documents(self, unit: SourceUnit, ignored: list[str], reject: Reject) -> Iterator[Reference]:
        """Yield a unit's references, each converted by `_convert_document`; reject those that it does not accept."""
        # Classes are not checked here: `_convert_document` resolves them if records store them.
        for reference in list_references(self.source, unit, ignored, reject, stores_classes=False):
            try:
                yield self._convert_document(reference)
            except BadRecordError as error:
                reject(add_key(error, reference.key))

    def _convert_document(self, reference: Reference) -> Reference:
        """Return a reference with class names, features and payload for text; BadRecordError if its size or a label is invalid."""
        # The size is that of the bytes that the reference carries, otherwise that of its range.
        size = len(reference.data) or reference.size
        max_bytes = self.text.document_bytes
        if size > max_bytes:
            raise BadRecordError(
                reference.origin,
                f"larger than --document-bytes (got {size:,} bytes, expected at most {max_bytes:,}). Pass a larger"
                " --document-bytes",
            )
        payload = reference.payload
        # The default payload does not say how text is stored: whole files may have any form, other ranges are plain text.
        if payload == SELF_DESCRIBING:
            payload = _WHOLE_FILE_TEXT if reference.offset == WHOLE_FILE and not reference.data else PLAIN_TEXT
        features = {feature.name: reference.features.get(feature.name) for feature in self.schema} or NO_FEATURES
        return reference._replace(
            size=size, payload=payload, labels=self._resolve_classes(reference), features=features
        )

    def _resolve_classes(self, reference: Reference) -> tuple[str, ...]:
        """Return the class names of a document; none if the source has no classes.

        Raises:
            BadRecordError: a label is unknown, or there is not exactly one label although each document has one class.
        """
        if not self.has_classes:
            return ()
        if not self.has_several_labels and len(reference.labels) != 1:
            raise BadRecordError(
                reference.origin,
                f"not exactly one label: {count_text(len(reference.labels), 'label')} {list(reference.labels)}",
            )
        return tuple(self.classes.resolve(label, reference.origin) for label in reference.labels)


def _is_small(reference: Reference) -> bool:
    """Return whether to read and hold a document: it is a small range of a file. A whole file takes one read anyway.

    If the payload fetches the bytes, they are not in the range.
    """
    is_range = reference.offset != WHOLE_FILE and not reference.data and not reference.payload.is_fetched
    return is_range and 0 < reference.size < SMALL_BYTES


def _read_rows(pack: Pack, rows: npt.NDArray[np.intp]) -> Iterator[bytes]:
    """Yield the bytes of some documents, reading neighbours together; b"" for an unreadable document, which its shard reports."""
    if len(rows):
        for _, data in read_packs([pack.take(rows)]):
            yield b"" if isinstance(data, BadRecordError) else data


def _open_classes(source: Source, labels: TextLabelOptions) -> Classes:
    """Return the classes of `--labels FILE` or, without it, of the source; if the source has none, all labels become classes."""
    if labels.labels_file is None and source.labels is not None:
        return Classes(source.labels, "the source", comes_from_metadata=True)
    return Classes.open(labels, has_integers=source.integer_labels)


def _reject_options_of_files(text: TextOptions, name: str) -> None:
    """Raise UsageError if an option for reading files of text is set."""
    is_set_by_flag = {
        "--form": text.form != AUTO,
        "--no-header": text.headerless,
        "--targets-file": text.targets_file is not None,
        "--key-field": text.key_field is not None,
        "--label-field": text.labels.label_field is not None,
        "--label-from": text.labels.label_from is not None,
        "--label-type": text.labels.label_type is not None,
    }
    flag = next((flag for flag, is_set in is_set_by_flag.items() if is_set), None)
    if flag is not None:
        raise UsageError(f"{flag} is for files of text, and --source is {name}. Omit the flag.")
