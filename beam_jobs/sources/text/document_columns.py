"""Classes and keys of documents, from fields of their rows, or from the folders that their files lie in."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from beam_jobs.compression.files import strip_compression
from beam_jobs.parquet_files.class_names import describe_columns, find_class_names
from beam_jobs.parquet_files.reader import open_parquet
from beam_jobs.references.labels import Labels, is_utf8
from beam_jobs.references.notes import LABEL_BLANKS, Note, ignore_note
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.rejection import Reject, add_key
from beam_jobs.sources.classes import Classes, are_integer_labels, parse_row_labels
from beam_jobs.sources.named_splits import NamedSplits
from beam_jobs.text_files.document import DocumentBlock, TextFile
from beam_jobs.text_files.documents import document_blocks, text_parts
from beam_jobs.text_files.forms import detect_form
from beam_jobs.text_files.options import PARQUET, TextOptions
from beam_jobs.text_files.values import DocumentError, make_missing_field_error, parse_row
from beam_jobs.values.column_kinds import INT
from tpudata.errors import BadRecordError, CorruptionError, SourceError, TpudataError
from tpudata.json_values import abbreviate_json


@dataclasses.dataclass(frozen=True)
class DocumentColumns:
    """Rules for finding the classes and keys of documents.

    Attributes:
        text: form and fields of documents.
        splits: splits that the names of the files stand for; a folder that stands for one is not a class.
        classes: mapping from labels to class names.
        has_several_labels: whether a document may have any number of classes.
        class_names: class names in the metadata of the first file, which all files must have; None if it has none, and with
            `--labels FILE`.
    """

    text: TextOptions
    splits: NamedSplits
    classes: Classes
    has_several_labels: bool = False
    class_names: tuple[str, ...] | None = None

    @classmethod
    def infer(cls, text: TextOptions, splits: NamedSplits, files: Iterable[TextFile]) -> DocumentColumns:
        """Return the rules for an input; what the options leave open follows from the first file's metadata or first document.

        Args:
            text: form and fields of documents.
            splits: splits that the names of the files stand for.
            files: the files of the input, in order.

        Raises:
            SourceError: the file of `--labels` is invalid.
        """
        options = text.labels
        if options.label_field is None:
            return cls(text, splits, Classes.open(options, has_integers=options.label_type == INT))
        first_file = next(iter(files), None)
        class_names = None if first_file is None else _read_class_names(first_file, text)
        first_label = None if first_file is None else _read_first_label(first_file, text)
        has_several_labels = options.label_separator is not None or isinstance(first_label, list)
        # Labels are indices of names in the metadata, unless --labels FILE gives different names.
        if first_file is not None and class_names is not None and options.labels_file is None:
            classes = Classes(Labels(class_names), first_file.path, has_integers=True, comes_from_metadata=True)
            return cls(text, splits, classes, has_several_labels, class_names)
        labels_as_written: tuple[str, ...] = ()
        if first_file is not None and first_label is not None:
            # The listing rejects an invalid label with its document.
            with contextlib.suppress(BadRecordError):
                labels_as_written, _ = _parse_labels(first_label, text, first_file.path)
        has_integers = are_integer_labels(labels_as_written, options.label_type)
        # If the first label is a name, later labels that are numbers are rejected, unless --label-type allows them.
        rejects_numbers = options.label_type is None and not has_integers
        return cls(
            text,
            splits,
            Classes.open(options, has_integers=has_integers, rejects_numbers=rejects_numbers),
            has_several_labels,
        )

    @property
    def has_classes_or_keys(self) -> bool:
        """Whether documents have classes, or keys in their rows."""
        return self.text.labels.has_classes or self.text.key_field is not None

    def check_file(self, file: TextFile) -> None:
        """Raise SourceError if class names come from the first file's metadata, and those in a file's metadata differ."""
        if self.class_names is not None and _read_class_names(file, self.text) != self.class_names:
            raise SourceError(
                f"{file.path} and the first file of the input have different class names. Convert them one by one, or pass --labels"
                " FILE."
            )

    def add_columns(self, block: DocumentBlock, reject: Reject, note: Note = ignore_note) -> DocumentBlock | None:
        """Return a block's documents with classes and keys, omitting documents without valid ones; None if no document remains.

        Args:
            block: documents of a file.
            reject: called with the error of a document without a valid class or key. If it returns, the document is omitted.
            note: called with the kind of a note and an example: a label from which blanks are removed.
        """
        if not self.has_classes_or_keys:
            return block
        if self.text.labels.label_from is not None:
            # The file is one document, whose key is the path of the file below the input.
            relative_path = strip_compression(block.file.name)
            try:
                return block._replace(labels=[(self._resolve_folder_class(block.file.path, relative_path),)])
            except BadRecordError as error:
                reject(add_key(error, relative_path))
                return None
        rows: list[int] = []
        labels: list[tuple[str, ...]] = []
        keys: list[str] = []
        for row, (key, data, offset) in enumerate(_iterate_documents(block)):
            try:
                row_classes, row_key = self._read_row(key, data, block, offset, note)
            except BadRecordError as error:
                reject(add_key(error, key))
                continue
            rows.append(row)
            labels.append(row_classes)
            keys.append(row_key)
        if not rows:
            return None
        spans = block.spans if len(rows) == len(block.spans.sizes) else block.spans.take(np.array(rows))
        own_keys = None if self.text.key_field is None else PackedKeys.of(keys)
        return block._replace(spans=spans, labels=labels, own_keys=own_keys)

    def _read_row(
        self, key: str, data: bytes, block: DocumentBlock, document_offset: int, note: Note
    ) -> tuple[tuple[str, ...], str]:
        """Return the class names and the key of a document that is a row; BadRecordError if one is missing or invalid.

        Args:
            key: key of the document by its position in the file; it is returned if there is no field of keys.
            data: bytes of the document.
            block: block of the document.
            document_offset: offset of the document in its file.
            note: called with the kind of a note and an example: a label from which blanks are removed.
        """
        path = block.file.path
        origin = f"{key} in {path}"
        label_field, key_field = self.text.labels.label_field, self.text.key_field
        try:
            values = parse_row(data, block.form, self.text)
            fields = (name for name in (label_field, key_field) if name is not None)
            missing_field = next((name for name in fields if name not in values), None)
            if missing_field is not None:
                raise make_missing_field_error(missing_field, values)
        except DocumentError as error:
            # An offset in the document is one in the file only if the file holds the document's bytes unchanged.
            if block.is_addressed:
                raise BadRecordError(path, str(error), document_offset + (error.offset or 0)) from None
            position_text = "" if error.offset is None else f" (byte {error.offset} of the document)"
            raise BadRecordError(origin, f"{error}{position_text}") from None
        class_names: tuple[str, ...] = ()
        if label_field is not None:
            label = values[label_field]
            if isinstance(label, str) and label != label.strip():
                note(LABEL_BLANKS, label)
            class_names = self._resolve_classes(label, origin)
        row_key = key if key_field is None else _parse_row_key(values[key_field], key_field, origin)
        return class_names, row_key

    def _resolve_classes(self, value: Any, origin: str) -> tuple[str, ...]:
        """Return the class names for the label in a row; BadRecordError if it is invalid."""
        labels_as_written, may_be_several = _parse_labels(value, self.text, origin)
        if may_be_several and not self.has_several_labels:
            raise BadRecordError(origin, "it has a list of labels, unlike the first document")
        return tuple(self.classes.resolve(label, origin) for label in labels_as_written)

    def _resolve_folder_class(self, path: str, relative_path: str) -> str:
        """Return the class of the folder that holds a file; BadRecordError if there is none, or for an unknown class."""
        folders = relative_path.split("/")[:-1]
        # The outermost folder may be a split.
        if self.splits.names_are_splits and folders and self.splits.split_of(folders[0]):
            folders = folders[1:]
        if not folders:
            raise BadRecordError(
                path,
                "lies in no folder of its class; put it into one, or name the files by a pattern, such as --input"
                " 'DIR/*/*.txt'",
            )
        return self.classes.resolve(folders[-1], path)


def _read_class_names(file: TextFile, text: TextOptions) -> tuple[str, ...] | None:
    """Return the class names for labels in a file's metadata; None if it has none, is not Parquet, or cannot be read."""
    label = text.labels.label_field
    with contextlib.suppress(SourceError, CorruptionError):
        if label is not None and detect_form(file.path, text).kind == PARQUET:
            with open_parquet(file.path, file.size) as parquet_file:
                return find_class_names(describe_columns(parquet_file.schema).get(label, {}))
    return None


def _read_first_label(file: TextFile, text: TextOptions) -> Any:
    """Return the label of a file's first document, as written; None if it has none or cannot be read, which the listing reports."""
    with contextlib.suppress(TpudataError, DocumentError):
        for part in text_parts([file], text):
            for block in document_blocks(part, text, _ignore_rejection):
                for _, data, _ in _iterate_documents(block):
                    return parse_row(data, block.form, text).get(text.labels.label_field or "")
    return None


def _ignore_rejection(error: BadRecordError) -> None:
    del error


def _parse_labels(value: Any, text: TextOptions, origin: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in the label field of a row, and whether it may hold several; BadRecordError if the value is invalid."""
    return parse_row_labels(value, text.labels.label_separator, origin, f"field {text.labels.label_field!r}")


def _parse_row_key(value: Any, name: str, origin: str) -> str:
    """Return the key in a row's field; BadRecordError if it is empty, not Unicode, or neither a string nor an integer."""
    is_key = isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
    if not is_key or (isinstance(value, str) and not is_utf8(value)):
        raise BadRecordError(
            origin,
            f"field {name!r} is not a key: it is {abbreviate_json(value)}; allowed are a text that is not empty or a whole number",
        )
    return str(value)


def _iterate_documents(block: DocumentBlock) -> Iterator[tuple[str, bytes, int]]:
    """Yield (key, bytes, offset in the file) of each document; the key is made from its position in the file."""
    data = block.spans.data
    columns = (column.tolist() for column in (block.spans.starts, block.spans.sizes, block.spans.offsets))
    # A document that is a whole file begins at 0; its offset, WHOLE_FILE, is negative.
    for key, start, size, offset in zip(block.keys, *columns, strict=True):
        yield key, data[start : start + size], max(0, offset)
