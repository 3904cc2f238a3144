"""Class names as an input writes them, and the file that may fix them."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, NoReturn

from beam_jobs.options.labels import TextLabelOptions
from beam_jobs.references.labels import NO_CLASS_NAME, Labels, is_class_name, is_integer_label
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import Source
from tpudata.console.nearest import suggestion
from tpudata.console.tables import counted
from tpudata.errors import BadRecordError, SourceError
from tpudata.json_values import shown_json
from tpudata.storage import storage_for

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
# Whole numbers are labels as they stand, so the classes run to the largest; beyond this they are something else: years, ids.
MAX_INTEGER_LABEL = 1_000_000


def is_number_label(text: str) -> bool:
    """Return whether a class is written as any number, also as -1, 01 or 1.0, which are no labels themselves."""
    return _NUMBER.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True)
class Classes:
    """The way from classes as an input writes them to class names.

    Attributes:
        labels: the names in `--labels FILE`, or None.
        path: that file, or the file whose metadata have the names.
        integers: whether the input writes whole numbers. They are labels themselves; with a file, lines counted from 0.
        unmixed: whether names that are numbers are rejected: the labels looked at first are names.
        are_of_input: whether the names are those of an input's metadata.
    """

    labels: Labels | None = None
    path: str = ""
    integers: bool = False
    unmixed: bool = False
    are_of_input: bool = False

    @classmethod
    def open(
        cls, options: SourceOptions | TextLabelOptions, *, integers: bool = False, unmixed: bool = False
    ) -> Classes:
        """Read the file of class names, if the options name one.

        Args:
            options: of the input.
            integers: as the attribute.
            unmixed: as the attribute.

        Raises:
            SourceError: the file is not there, or a line of it is empty or comes twice.
        """
        if options.labels_file is None:
            return cls(integers=integers, unmixed=unmixed)
        return cls(read_labels(options.labels_file), options.labels_file, integers)

    @property
    def collects_integers(self) -> bool:
        """Whether class names are whole numbers that are the labels themselves."""
        return self.integers and self.labels is None

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.labels.names if self.labels else ())

    def name(self, written: str, source: str) -> str:
        """Return the class name of what an input writes.

        Args:
            written: a class, as the input has it.
            source: where, for the message.

        Raises:
            BadRecordError: no such class.
        """
        if self.labels is not None:
            if written in self._names:
                return written
            if self.integers and is_integer_label(written) and int(written) < len(self.labels.names):
                return self.labels.names[int(written)]
            near, where = suggestion(written, self.labels.names), "" if self.are_of_input else "--labels "
            raise BadRecordError(
                source,
                f"unknown label: {written!r}; {where}{self.path} has {counted(len(self.labels.names), 'name')}{near}",
            )
        if self.integers:
            self._check_integer(written, source)
        elif not written:
            raise BadRecordError(source, "its label is empty")
        elif not is_class_name(written):
            raise BadRecordError(source, f"its class name is {NO_CLASS_NAME}: {written!r}; rename it")
        elif self.unmixed and is_number_label(written):
            raise BadRecordError(
                source,
                f"its label is a number, and the first label of the input is not a whole number from 0: {written!r}; pass"
                " --label-type str if all are names, or --label-type int if all are numbers",
            )
        return written

    def _check_integer(self, written: str, source: str) -> None:
        if not is_integer_label(written):
            raise BadRecordError(
                source,
                f"its label is no whole number from 0, as other labels of the input are: {written!r}; correct it, or pass"
                " --label-type str if all are names",
            )
        if len(written) > 7 or int(written) > MAX_INTEGER_LABEL:
            raise BadRecordError(
                source,
                f"its label is more than {MAX_INTEGER_LABEL:,}, the most that whole numbers may count classes to: {written}; list"
                " the classes in a file and pass --labels FILE",
            )


class ClassifiedSource(Source):
    """A source whose classes are those of a field `classes`: of `--labels FILE`, or collected from the references.

    Attributes:
        classes: the way to class names.
    """

    classes: Classes

    @property
    def labels(self) -> Labels | None:
        """The classes of `--labels FILE`."""
        return self.classes.labels

    @property
    def integer_labels(self) -> bool:
        """Whether class names are whole numbers that are the labels themselves."""
        return self.classes.collects_integers


def read_labels(path: str) -> Labels:
    """Return the class names in a file, a line each.

    Raises:
        SourceError: the file is not there or has none, or a line of it is empty or comes twice.
    """

    def reject(reason: str) -> NoReturn:
        raise SourceError(
            f"--labels {path}: {reason}. It holds the class names, a line each, in the order of their labels."
        )

    entry = storage_for(path).stat(path)
    if entry is None or entry.is_folder:
        reject("there is no such file" if entry is None else "it is a folder")
    try:
        text = storage_for(path).read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reject(f"byte {error.start} is not UTF-8")
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            reject(f"line {number} is empty")
        if name in seen:
            reject(f"{name!r} is on line {seen[name]} and on line {number}")
        seen[name] = number
    return Labels(tuple(seen))


def row_labels(value: Any, separator: str | None, source: str, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in a value of a row, without blanks around them, and whether it may hold several.

    Args:
        value: the value, as it is written.
        separator: text between several labels in it, or None.
        source: where it is, for the message.
        name: name of the column, for the message.

    Raises:
        BadRecordError: as of `json_labels`.
    """
    if isinstance(value, str) and separator is not None:
        return tuple(part.strip() for part in value.split(separator) if part.strip()), True
    return json_labels(value.strip() if isinstance(value, str) else value, source, name)


def json_labels(value: Any, source: str, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in a JSON value, and whether they are a list.

    Raises:
        BadRecordError: not a string, not a whole number, and not a list of these.
    """
    several = isinstance(value, list)
    items = value if several else [value]
    for item in items:
        if not isinstance(item, (str, int)) or isinstance(item, bool) or item == "":
            raise BadRecordError(
                source,
                f"{name} is no label: it is {shown_json(item)}; allowed are a string, a whole number, or a list of these",
            )
    return tuple(map(str, items)), several
