"""Class names: from labels as an input writes them, and from `--labels FILE`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection
from typing import Any, NoReturn

from beam_jobs.options.labels import TextLabelOptions
from beam_jobs.references.labels import NO_CLASS_NAME, Labels, is_below, is_class_name, is_integer_label
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import Source
from beam_jobs.values.column_kinds import INT
from tpudata.console.nearest import suggestion
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError
from tpudata.json_values import abbreviate_json
from tpudata.storage import storage_for

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
# There is a class for each number up to the largest integer label. Larger numbers are years or ids.
MAX_INTEGER_LABEL = 1_000_000


def is_number_label(text: str) -> bool:
    """Return whether a label is a number in decimal digits: an integer label, or another number such as -1, 01 or 1.0."""
    return _NUMBER.fullmatch(text) is not None


def are_integer_labels(labels: Collection[str], label_type: str | None) -> bool:
    """Return whether the labels of an input are integers that stand for themselves, given its first labels.

    Args:
        labels: the first labels as written; empty if none is known.
        label_type: `"int"` or `"str"` if `--label-type` declares it. If it is None, all first labels must be integers.
    """
    if label_type is not None:
        return label_type == INT
    return bool(labels) and all(map(is_integer_label, labels))


def is_too_large(integer_label: str) -> bool:
    """Return whether an integer label is above `MAX_INTEGER_LABEL`."""
    return not is_below(integer_label, MAX_INTEGER_LABEL + 1)


@dataclasses.dataclass(frozen=True)
class Classes:
    """Mapping from labels as an input writes them to class names.

    Attributes:
        labels: the names in `--labels FILE` or in the input itself, such as its metadata; None if neither has names.
        path: path of the file with the names, or words for where they come from, for messages; empty if there are no names.
        has_integers: whether the input writes integers, which are indices into `labels`, or labels themselves if that is None.
        rejects_numbers: whether numbers are rejected, because the first labels of the input are names.
        comes_from_metadata: whether the names come from the input itself, such as its metadata; False for `--labels FILE`.
    """

    labels: Labels | None = None
    path: str = ""
    has_integers: bool = False
    rejects_numbers: bool = False
    comes_from_metadata: bool = False

    @classmethod
    def open(
        cls, options: SourceOptions | TextLabelOptions, *, has_integers: bool = False, rejects_numbers: bool = False
    ) -> Classes:
        """Make the mapping, with the names in `--labels FILE` if the options name one.

        Args:
            options: options of the input.
            has_integers: whether the input writes integers: labels themselves or, with a file, indices into its names.
            rejects_numbers: whether numbers are rejected, because the first labels of the input are names; ignored with a file.

        Raises:
            SourceError: the file of `--labels` is missing or invalid, see `read_labels`.
        """
        if options.labels_file is None:
            return cls(has_integers=has_integers, rejects_numbers=rejects_numbers)
        return cls(read_labels(options.labels_file), options.labels_file, has_integers)

    @property
    def collects_integers(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return self.has_integers and self.labels is None

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.labels.names if self.labels else ())

    def resolve(self, label: str, origin: str) -> str:
        """Return the class name for a label as written.

        Args:
            label: label as the input writes it.
            origin: file and line or offset, for the message.

        Raises:
            BadRecordError: the label is unknown, empty, out of range, of the wrong type, or no valid class name.
        """
        if self.labels is not None:
            if label in self._names:
                return label
            if self.has_integers and is_integer_label(label) and is_below(label, len(self.labels.names)):
                return self.labels.names[int(label)]
            file = self.path if self.comes_from_metadata else f"--labels {self.path}"
            hint = suggestion(label, self.labels.names)
            raise BadRecordError(
                origin, f"unknown label: {label!r}; {file} has {count_text(len(self.labels.names), 'name')}{hint}"
            )
        if self.has_integers:
            self._check_integer(label, origin)
        elif not label:
            raise BadRecordError(origin, "its label is empty")
        elif not is_class_name(label):
            raise BadRecordError(origin, f"its class name is {NO_CLASS_NAME}: {label!r}; rename it")
        elif self.rejects_numbers and is_number_label(label):
            raise BadRecordError(
                origin,
                f"its label is a number, and the first label of the input is not a whole number from 0: {label!r}; pass"
                " --label-type str if all are names, or --label-type int if all are numbers",
            )
        return label

    def _check_integer(self, label: str, origin: str) -> None:
        """Raise BadRecordError if a label is not an integer that can be a label itself."""
        if not is_integer_label(label):
            raise BadRecordError(
                origin,
                f"its label is not a whole number from 0, as other labels of the input are: {label!r}; correct it, or pass"
                " --label-type str if all are names",
            )
        if is_too_large(label):
            raise BadRecordError(
                origin,
                f"its label is more than {MAX_INTEGER_LABEL:,}, the largest that a whole number may be: {label}; list the classes"
                " in a file and pass --labels FILE",
            )


class ClassifiedSource(Source):
    """A source with a field `classes`: its names come from a file or the input's metadata, or are collected from the references.

    Attributes:
        classes: mapping to class names.
    """

    classes: Classes

    @property
    def labels(self) -> Labels | None:
        """The classes of `--labels FILE` or the input's metadata; None if they are collected from the references."""
        return self.classes.labels

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return self.classes.collects_integers


def read_labels(path: str) -> Labels:
    """Return the class names in a file, a line each.

    Raises:
        SourceError: the file does not exist, is a folder or not UTF-8, or a line is empty, repeated, or no valid class name.
    """

    def reject(reason: str) -> NoReturn:
        raise SourceError(
            f"--labels {path}: {reason}. It holds the class names, a line each, in the order of their labels."
        )

    entry = storage_for(path).stat(path)
    if entry is None or entry.is_folder:
        reject("there is no such file" if entry is None else "it is a folder")
    try:
        text = storage_for(path).read(path).decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reject(f"byte {error.start} is not UTF-8")
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    line_numbers_by_name: dict[str, int] = {}
    for line_number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            reject(f"line {line_number} is empty")
        if name in line_numbers_by_name:
            reject(f"{name!r} is on line {line_numbers_by_name[name]} and on line {line_number}")
        line_numbers_by_name[name] = line_number
    return Labels(tuple(line_numbers_by_name))


def parse_row_labels(value: Any, separator: str | None, origin: str, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in a row's value, and whether the row may have several; blanks around each label are removed.

    Args:
        value: the value, as written.
        separator: string between several labels in it; None if a string is a single label.
        origin: list and line, or document, for the message.
        name: name of the column or field, for the message.

    Raises:
        BadRecordError: see `parse_json_labels`.
    """
    if isinstance(value, str) and separator is not None:
        return tuple(part.strip() for part in value.split(separator) if part.strip()), True
    return parse_json_labels(value.strip() if isinstance(value, str) else value, origin, name)


def parse_json_labels(value: Any, origin: str, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in a JSON value, and whether the value is a list.

    Args:
        value: the value.
        origin: file and line, or member of a tar, for the message.
        name: name of the column, field or key, for the message.

    Raises:
        BadRecordError: the value is not a nonempty string, an integer, or a list of these.
    """
    is_list = isinstance(value, list)
    labels = value if is_list else [value]
    for label in labels:
        if not isinstance(label, (str, int)) or isinstance(label, bool) or label == "":
            raise BadRecordError(
                origin,
                f"{name} is not a label: it is {abbreviate_json(label)}; allowed are a string, a whole number, or a list of these",
            )
    return tuple(map(str, labels)), is_list
