"""Hugging Face's imagefolder: metadata.csv or metadata.jsonl next to the pictures.

    {"file_name": "0001.png", "text": "a red roof", "label": "house", "objects": {"bbox": [[x, y, width, height], ...],
    "categories": [0, ...]}}

`text` is a caption or a list of them, `label` the class of the picture, or a list of classes; objects_column.py describes the
form of `objects`. Other columns are values of the record. A CSV has no objects; a column whose cells are all numbers has numbers.
Source: https://huggingface.co/docs/datasets/image_dataset.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, Place
from beam_jobs.annotations.files.folders import pick_file
from beam_jobs.annotations.files.rows import TableRow, parse_table_columns, read_table_rows, read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.objects_column import find_class_name, read_objects
from beam_jobs.references.labels import is_utf8
from beam_jobs.values.column_kinds import FLOAT, INT, STR, find_kind_of_text, float32_problem, parse_float
from tpudata.errors import BadRecordError, SourceError
from tpudata.json_values import abbreviate_json, parse_input_json
from tpudata.storage import Entry

_PICTURE, _OBJECTS, _LABEL = "file_name", "objects", "label"
_CAPTIONS = ("text", "caption", "captions")
_USED_COLUMNS = {_PICTURE, _OBJECTS, _LABEL, *_CAPTIONS}
# Kinds of cells, next to INT, FLOAT and STR. float32 would change a wide integer.
_EMPTY, _WIDE_INT = "empty", "wide int"
_FILE_NAMES = ("metadata.jsonl", "metadata.csv")


@dataclasses.dataclass(frozen=True)
class ImageFolderForm(AnnotationForm):
    """A metadata file of Hugging Face's imagefolder.

    Attributes:
        path: path of the metadata file.
        is_csv: whether it is a CSV, instead of JSONL.
    """

    path: str
    is_csv: bool
    title = "Hugging Face metadata.jsonl or metadata.csv"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> ImageFolderForm | None:
        """Return the form of a CSV with the column file_name, or of JSONL with this key; None for any other file."""
        if _PICTURE in parse_table_columns(head):
            return cls(path, is_csv=True)
        # The first line, without the byte order mark of UTF-8.
        line = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
        try:
            row = parse_input_json(line) if line.startswith(b"{") else None
        except ValueError:
            return None
        return cls(path, is_csv=False) if isinstance(row, dict) and _PICTURE in row else None

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> ImageFolderForm | None:
        """Return the form of a folder with metadata.csv or metadata.jsonl; None if it has neither."""
        del path
        metadata_path = pick_file(entries, *_FILE_NAMES)
        return cls(metadata_path, is_csv=metadata_path.endswith(".csv")) if metadata_path else None

    def list_parts(self) -> Iterable[str]:
        """Return the file, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of each picture, in the order of the file."""
        del names
        seen_pictures: set[str] = set()
        rows = _read_csv_rows(part) if self.is_csv else _read_json_rows(part)
        for place, row in rows:
            if isinstance(row, BadRecordError):
                yield row
                continue
            try:
                annotation = _parse_annotation(row, place)
                if annotation.picture in seen_pictures:
                    raise ValueError("listed twice")
                seen_pictures.add(annotation.picture)
                yield annotation
            except ValueError as error:
                name = row.get(_PICTURE)
                yield place.make_error(str(error), name if isinstance(name, str) else "")


def _read_csv_rows(path: str) -> Iterator[tuple[Place, Mapping[str, Any] | BadRecordError]]:
    """Yield (place, row or its error) for each row of a CSV; cells are parsed by the kinds of their columns."""
    kinds = _find_column_kinds(path)
    for row in read_table_rows(path):
        if isinstance(row, BadRecordError):
            # The caller uses the place only of valid rows: the error names the line.
            yield Place(path), row
        else:
            # Columns that are no values, such as captions, have no kind, and are text.
            yield row.place, {name: _parse_cell(cell, kinds.get(name, STR)) for name, cell in row.cells.items()}


def _find_column_kinds(path: str) -> dict[str, str]:
    """Return the kind of each value column of a CSV, by name: the narrowest kind that changes none of the column's cells.

    Raises:
        SourceError: a column has no name, or the file cannot be read as a table.
    """
    cell_kinds_by_column: dict[str, set[str]] = {}
    for row in read_table_rows(path):
        if isinstance(row, TableRow):
            if "" in row.cells:
                raise SourceError(f"{path}: a column has no name, which a feature needs. Give it one in the first row.")
            for name in row.cells.keys() - _USED_COLUMNS:
                cell_kinds_by_column.setdefault(name, set()).add(_find_cell_kind(row.cells[name]))
    return {name: _merge_cell_kinds(cell_kinds) for name, cell_kinds in cell_kinds_by_column.items()}


def _merge_cell_kinds(cell_kinds: set[str]) -> str:
    """Return the kind of a column from the kinds of its cells: text if a number would change some of them."""
    # Fractions make the column float32, which would change wide integers.
    if STR in cell_kinds or {FLOAT, _WIDE_INT} <= cell_kinds:
        return STR
    if FLOAT in cell_kinds:
        return FLOAT
    # An empty cell is NaN among fractions. Integers have no NaN, so a column of them with empty cells is text.
    return STR if _EMPTY in cell_kinds else INT


def _find_cell_kind(cell: str) -> str:
    """Return the kind of a cell: empty, an integer, a wide integer that float32 would change, a fraction, or text.

    A fraction that is too large for float32, or that float32 would move by 0.5 or more, is text.
    """
    if not cell:
        return _EMPTY
    kind = find_kind_of_text(cell)
    if kind == INT:
        return _WIDE_INT if float32_problem(int(cell)) else INT
    if kind == FLOAT:
        number = parse_float(cell)
        return STR if number is None or float32_problem(number) else FLOAT
    return kind


def _parse_cell(cell: str, kind: str) -> int | float | str:
    """Return a cell in the kind of its column: an int, a float (NaN for an empty cell), or the text itself."""
    if kind == INT:
        return int(cell)
    return float(cell or math.nan) if kind == FLOAT else cell


def _read_json_rows(path: str) -> Iterator[tuple[Place, Mapping[str, Any] | BadRecordError]]:
    """Yield (place, row or its error) for each row of a JSONL file."""
    for place, text in read_text_lines(path):
        try:
            row = parse_input_json(text)
        except ValueError as error:
            yield place, place.make_error(f"not JSON: {error}")
            continue
        yield place, row if isinstance(row, dict) else place.make_error(f"no JSON object: {abbreviate_json(row)}")


def _parse_annotation(row: Mapping[str, Any], place: Place) -> ImageAnnotation:
    """Return the annotation of a row; ValueError if it is invalid."""
    name = row.get(_PICTURE)
    if not isinstance(name, str) or not name:
        raise ValueError(f"no {_PICTURE!r}")
    for key in row:
        if not key or not is_utf8(key):
            raise ValueError(f"the name of a value is {key!r}, which is empty or not Unicode")
    captions: tuple[str, ...] = ()
    for key in _CAPTIONS:
        if row.get(key) is not None:
            captions += _parse_texts(row[key], key)
    label = row.get(_LABEL)
    labels = label if isinstance(label, list) else [label]
    # A CSV has no objects: cells of their column are ignored.
    has_objects = isinstance(row.get(_OBJECTS), dict | list)
    return ImageAnnotation(
        name,
        place,
        objects=read_objects(row[_OBJECTS]) if has_objects else (),
        captions=captions,
        classes=() if label is None else tuple(map(find_class_name, labels)),
        values=tuple((key, value) for key, value in row.items() if key not in _USED_COLUMNS),
    )


def _parse_texts(value: Any, key: str) -> tuple[str, ...]:
    """Return the captions of a row: a text or a list of texts; ValueError with `key` if the value is neither."""
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key!r} is neither a text nor a list of texts: {abbreviate_json(value)}")
    return tuple(texts)
