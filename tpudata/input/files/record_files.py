"""Descriptions of record files without a manifest: TFRecords, records of one length, lines of text.

A description names the files and defines their records. `tpudata.input.files.plain_dataset` opens them.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Feature
from tpudata.storage import Entry, expand, is_pattern, storage_for

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

# Dtypes of a Feature of raw bytes.
_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
_LABEL = "label"


@dataclasses.dataclass(frozen=True)
class TFRecordFiles:
    """TFRecord files of `tf.train.Example`s, or of any records that a parse function takes.

    `make_input_fn` rejects compressed files, in which records have no known offsets, and files with a damaged record length, after
    which the next record cannot be found.

    Attributes:
        files: a path, a pattern such as "data/train-*", or a sequence of these. Records are in the order of the sequence; files of
            a pattern are sorted by name.
        features: features that are read of each record, as `tpudata.format.Feature`s; none with a parse function.
        label: name of the feature that is yielded as labels, by default "label" or "image/class/label" if there is one.

    Raises:
        UsageError: an argument is of another type.
        FeatureError: two features of one name, or no feature with the name of the label.
    """

    files: Paths
    features: Sequence[Feature] = ()
    label: str | None = None

    def __post_init__(self) -> None:
        _check_paths(self.files)
        if not isinstance(self.features, Sequence) or not all(isinstance(f, Feature) for f in self.features):
            got = type(self.features).__name__
            raise UsageError(
                f"features: not a sequence of tpudata.format.Feature (got {got}). Pass [Feature(...), ...]."
            )
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise FeatureError(f"features: two have one name: {', '.join(sorted(names))}. Omit one.")
        _check_label(self.label, names)


@dataclasses.dataclass(frozen=True)
class FixedLengthRecordFiles:
    """Binary files of records of one length, such as CIFAR-10's batches or MNIST's idx files.

    Attributes:
        files: as in `TFRecordFiles`.
        record: layout of a record as a numpy dtype: `[("label", "u1"), ("image", "u1", (3, 32, 32))]` is a byte of a label and
            3,072 of an image, ">i4" a big-endian integer.
        header_bytes: bytes before the first record of each file, such as 16 in MNIST's images.
        footer_bytes: bytes after the last record.
        label: name of the part that is yielded as labels, by default "label" if there is one; a single integer.

    Raises:
        UsageError: an argument is of another type or out of range.
        FeatureError: a part of the record has a dtype that cannot be fed, or the label is missing.
    """

    files: Paths
    record: Any
    header_bytes: int = 0
    footer_bytes: int = 0
    label: str | None = None

    def __post_init__(self) -> None:
        _check_paths(self.files)
        _check_count("header_bytes", self.header_bytes)
        _check_count("footer_bytes", self.footer_bytes)
        names = self.dtype.names or ()
        for name in names:
            part = self.dtype[name]
            if part.base.name not in _DTYPES or 0 in part.shape:
                raise FeatureError(
                    f"record: unsupported dtype of {name!r} (got {part}, expected {', '.join(_DTYPES)})."
                )
        _check_label(self.label, names)
        label = self.label_name
        if label is not None and (self.dtype[label].shape != () or self.dtype[label].base.kind not in "iu"):
            raise FeatureError(f"record: invalid label {label!r} (got {self.dtype[label]}, expected one integer).")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The record as numpy's structured dtype."""
        try:
            dtype: np.dtype[Any] = np.dtype(self.record)
        except (TypeError, ValueError, SyntaxError) as error:
            raise UsageError(f"record={self.record!r}: {error}. Pass (name, dtype, shape) of each part.") from None
        if not dtype.names or self.record is None:
            raise UsageError(
                f'record={self.record!r}: it has no named parts. Pass a list such as [("image", "u1", (28, 28, 1))].'
            )
        return dtype

    @property
    def label_name(self) -> str | None:
        """Name of the label's part."""
        return _LABEL if self.label is None and _LABEL in (self.dtype.names or ()) else self.label

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features of the parts, as decoded."""
        return tuple(
            Feature(name, "int64", "int64")
            if name == self.label_name
            else Feature(name, "bytes", part.base.name, part.shape, "raw")
            for name, part in ((name, self.dtype[name]) for name in self.dtype.names or ())
        )


@dataclasses.dataclass(frozen=True)
class TextLineFiles:
    r"""Text files in which each line is a record, without its "\n" or "\r\n"; yielded as the feature `text`.

    Attributes:
        files: as in `TFRecordFiles`.
        skip_lines: number of lines to skip at the beginning of each file, such as the header of a CSV file.

    Raises:
        UsageError: an argument is of another type or out of range.
    """

    files: Paths
    skip_lines: int = 0

    def __post_init__(self) -> None:
        _check_paths(self.files)
        _check_count("skip_lines", self.skip_lines)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The line."""
        return (Feature("text", "bytes", "string", encoding="utf8"),)

    @property
    def label(self) -> None:
        """None: a line has no label."""
        return


RecordFiles: TypeAlias = TFRecordFiles | FixedLengthRecordFiles | TextLineFiles


def find_files(files: Paths) -> list[Entry]:
    """Return the files that match paths and patterns, in order.

    Raises:
        DatasetError: a path or pattern matches no file.
        UsageError: a file occurs twice.
        StorageError: a folder cannot be listed.
    """
    found: list[Entry] = []
    for path in _paths(files):
        entry = storage_for(path).stat(path)
        if entry is None and is_pattern(path):
            matched = [entry for entry, _ in expand(path) if not entry.is_folder]
            if not matched:
                raise DatasetError(f"files={path!r} matches no file. Name files, or a pattern that does.")
            found += matched
        elif entry is None:
            raise DatasetError(f"files: {path} does not exist. Pass a file, or a pattern such as 'data/train-*'.")
        elif entry.is_folder:
            raise DatasetError(f"files: {path} is a folder. Name its files, such as {path.rstrip('/')}/*.")
        else:
            found.append(entry)
    paths = [entry.path for entry in found]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"files: {path} comes twice. Name each file once.")
    return found


def _paths(files: Paths) -> list[str]:
    return [os.fspath(files)] if isinstance(files, (str, os.PathLike)) else [os.fspath(path) for path in files]


def _check_paths(files: Any) -> None:
    several = isinstance(files, Sequence) and not isinstance(files, (str, bytes)) and len(files) > 0
    paths = list(files) if several else [files]
    if not all(isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str) and path for path in paths):
        raise UsageError(f"files={files!r}: pass a path, a pattern such as 'data/train-*', or a list of these.")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 0:
        raise UsageError(f"{name}: invalid value (got {value!r}, expected an integer of 0 or more).")


def _check_label(label: Any, names: Sequence[str]) -> None:
    if label is not None and label not in names:
        raise FeatureError(f"label={label!r}: the records have {', '.join(names) or 'no features'}. Name one of these.")
