"""Parquet files with the bytes of images, as Hugging Face's datasets are stored.

The column of images holds bytes, or structs of `bytes` and `path`. The names of classes are in the schema's metadata under
`huggingface` (a feature of the type ClassLabel); without it, whole numbers are labels themselves and strings are names. A key is
FILE:ROW.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import IMAGE_COLUMNS, Note, ignore_note
from beam_jobs.references.ranged_file import open_ranged
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.named_splits import LOOKED_AT, NamedSplits, file_split, split_in_file_name
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.columns import Columns, find_columns
from beam_jobs.sources.source import Reject, make_reference, raise_rejection, with_key
from beam_jobs.sources.tars.file import file_size
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError
from tpudata.format import Feature

PARQUET_MAGIC = b"PAR1"
# Rows whose images are in memory at once.
_BATCH_ROWS = 32


class ParquetFile(NamedTuple):
    """A file.

    Attributes:
        path: the file.
        name: that keys begin with.
    """

    path: str
    name: str


class ParquetUnit(NamedTuple):
    """A row group.

    Attributes:
        path: the file.
        size: its bytes.
        name: that keys begin with.
        split: that its name stands for, or nothing.
        group: number of the row group.
        first: number of its first row.
    """

    path: str
    size: int
    name: str
    split: str
    group: int
    first: int


@dataclasses.dataclass(frozen=True)
class ParquetImages:
    """Rows of Parquet files: a Source whose parts are files and whose units are row groups.

    The command reads the footer of the first file; the footers of the others are read where they are listed.

    Attributes:
        options: deal out splits and seed the order.
        source_options: columns and labels.
        files: the files.
        splits: those that the names of the files stand for.
        columns: of the first file; all have the same.
        classes: how labels become names.
        note: gets columns that are not stored.
    """

    options: ConvertOptions
    source_options: SourceOptions
    files: InputFiles
    splits: NamedSplits
    columns: Columns
    classes: Classes
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()
    note: Note = ignore_note

    def noting(self, note: Note) -> ParquetImages:
        """Return the source that notes."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> ParquetImages:
        """Read the footer of the first file, and look at the names of the others.

        Args:
            options: of the conversion.
            source_options: columns and labels.
            files: the files.

        Raises:
            SourceError: there is no column of images or labels (names the columns that there are); or some names of files are
                splits, and some are not.
            CorruptionError: the first file is cut or damaged.
            UsageError: the options deal out splits, but the names of the files are splits.
        """
        some = list(itertools.islice(files, LOOKED_AT + 1))
        first = some[0][0]
        for name in ("split_column", "label_separator", "column_types"):
            if getattr(source_options, name):
                raise UsageError(f"--{name.replace('_', '-')} is for lists, and {first} is a Parquet file. Omit it.")
        with _opened(first, file_size(first)) as file:
            columns = find_columns(file.schema_arrow, source_options, first)
        splits = NamedSplits.find(options, [name for _, name in some], file_split, split_in_file_name, accidental=False)
        classes = Classes.open(source_options, integers=columns.integers and columns.names is None)
        return cls(options, source_options, files, splits, columns, classes)

    @property
    def has_classes(self) -> bool:
        """Whether there is a column of labels."""
        return self.columns.label is not None

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the files stand for."""
        return self.splits.named

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`, or of the schema's metadata."""
        return self.classes.labels or (None if self.columns.names is None else Labels(self.columns.names))

    @property
    def integer_labels(self) -> bool:
        """Whether the labels are whole numbers without names."""
        return self.classes.collects_integers

    def parts(self) -> Iterator[ParquetFile]:
        """Yield the files."""
        return (ParquetFile(path, name) for path, name in self.files)

    def units(self, part: ParquetFile, ignored: list[str]) -> Iterator[ParquetUnit]:
        """Yield the row groups of a file.

        Args:
            part: one of `parts()`.
            ignored: nothing is ignored here.

        Raises:
            SourceError: the file has other columns or class names than the first one, or its name leaves a doubt about splits.
            CorruptionError: the file is cut or damaged.
        """
        del ignored
        size, split, row = file_size(part.path), self.splits.of(part.name), 0
        with _opened(part.path, size) as file:
            if find_columns(file.schema_arrow, self.source_options, part.path) != self.columns:
                raise SourceError(
                    f"{part.path} and the first file of {self.options.input} have other columns or class names. Convert them one by"
                    " one."
                )
            for name in file.schema_arrow.names:
                if name not in (self.columns.image, self.columns.label):
                    self.note(IMAGE_COLUMNS, name)
            rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        for group, count in enumerate(rows):
            yield ParquetUnit(part.path, size, part.name, split, group, row)
            row += count

    def references(
        self, unit: ParquetUnit, ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference, with its bytes, to the image of each row of a row group."""
        del ignored
        columns = [self.columns.image, *([] if self.columns.label is None else [self.columns.label])]
        number = unit.first
        with _opened(unit.path, unit.size) as file:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[unit.group], columns=columns, use_threads=False):
                for values in zip(*(_values(batch.column(name)) for name in columns), strict=True):
                    where, key = f"{unit.path} row {number}", f"{unit.name}:{number}"
                    try:
                        data = _image_bytes(values[0], where)
                        labels = () if self.columns.label is None else (self._name(values[1], where),)
                        yield make_reference(
                            self.options,
                            key,
                            path=unit.path,
                            offset=number,
                            size=len(data),
                            split=unit.split,
                            labels=labels,
                            data=data,
                        )
                    except BadRecordError as error:
                        reject(with_key(error, key))
                    number += 1

    def _name(self, value: Any, where: str) -> str:
        if isinstance(value, UnicodeDecodeError):
            raise BadRecordError(where, f"its label is not UTF-8: {value.object!r}; write it as UTF-8")
        if self.columns.names is None or isinstance(value, str):
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise BadRecordError(where, f"its label is neither text nor a whole number: {value!r}")
            return self.classes.name(str(value), where)
        if not isinstance(value, int) or not 0 <= value < len(self.columns.names):
            raise BadRecordError(where, f"unknown label: {value!r}; labels go from 0 to {len(self.columns.names) - 1}")
        return self.classes.name(self.columns.names[value], where)


def _values(column: Any) -> list[Any]:
    """Return the values of a column; the error in place of a text that is not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value(scalar) for scalar in column]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _image_bytes(value: Any, where: str) -> bytes:
    if isinstance(value, UnicodeDecodeError):
        raise BadRecordError(where, f"the path of its image is not UTF-8: {value.object!r}; write it as UTF-8")
    path = value.get("path") if isinstance(value, dict) else None
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and path:
        raise BadRecordError(where, f"no bytes, and only a path: {path}; store the images' bytes in the Parquet file")
    if not data:
        raise BadRecordError(where, "the image is empty" if data is not None else "no image: a null")
    return bytes(data)


@contextlib.contextmanager
def _opened(path: str, size: int) -> Iterator[Any]:
    with open_ranged(path, size) as raw:
        try:
            yield parquet.ParquetFile(raw, pre_buffer=False)
        except MemoryError:  # Arrow's is an ArrowException, too.
            raise
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise CorruptionError(path, 0, f"the Parquet file is cut or damaged: {reason}") from None
