"""Classes and columns from the paths of pictures: `--label-from REGEX`.

    cat.0.jpg                --label-from '(\\w+)\\.\\d+\\.jpg'                          class cat
    25_0_2_2017.jpg.chip.jpg --label-from '(?P<age>\\d+)_(?P<label>\\d)_(?P<race>\\d)_'   class 0, columns age and race

The group `label` or, if there is none, the first group without a name, is the class; each other named group is a column. The
expression is searched for in the path below the input, or in the archive.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from beam_jobs.sources.classes import Classes, are_integer_labels, is_number_label
from beam_jobs.sources.lists.columns import convert_row, make_features
from beam_jobs.sources.options import SourceOptions
from beam_jobs.values.column_kinds import FLOAT32, INT, STR, ColumnKind, fits_int64, float32_problem, parse_float
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature

_LABEL = "label"
# Number of paths that decide the kinds of columns and classes.
_MAX_PATHS = 10_000
# Digits of the largest int64; int() may reject a string that is much longer.
_MAX_DIGITS = 19
# Integers of an undeclared column; a column with others, such as 007, holds strings, since they may be ids.
_INT = re.compile(r"0|-?[1-9][0-9]*")
_DECLARED_INT = re.compile(r"[+-]?[0-9]+")


class PathValues(NamedTuple):
    """Values in the path of a picture.

    Attributes:
        labels: name of the class; empty if the expression has no group for it.
        columns: values by column.
    """

    labels: tuple[str, ...]
    columns: Mapping[str, int | float | str]


@dataclasses.dataclass(frozen=True)
class PathLabels:
    """Rule that takes a picture's class and columns from its path.

    Attributes:
        pattern: the expression.
        kinds: kind of each column.
        classes: mapping from labels to class names.
    """

    pattern: re.Pattern[str]
    kinds: Mapping[str, ColumnKind]
    classes: Classes

    @classmethod
    def infer(cls, options: SourceOptions, paths: Iterable[str]) -> PathLabels | None:
        """Infer the rule, with kinds that fit the first paths of an input; return None if there is no `--label-from`.

        Args:
            options: options with the expression, and maybe with kinds of columns.
            paths: paths of the pictures; the expression is searched for in the first 10,000.

        Raises:
            SourceError: the file of `--labels` is invalid.
            UsageError: none of the first paths matches, or a declared column is not a group or is of lists.
        """
        if options.label_from is None:
            return None
        options.reject_list_types(reason="a path has none")
        pattern = re.compile(options.label_from)
        columns = [name for name in pattern.groupindex if name != _LABEL]
        unknown_column = next((name for name in options.column_kinds if name not in columns), None)
        if unknown_column is not None:
            raise UsageError(
                f"--column-types: --label-from has no group {unknown_column!r} (expected one of: {', '.join(columns) or 'none'})"
            )
        class_group = _find_class_group(pattern)
        first_path = ""
        has_match = False
        labels: set[str] = set()
        # Columns whose values so far are all integers.
        integer_columns = set(columns)
        for path in itertools.islice(paths, _MAX_PATHS):
            first_path = first_path or path
            match = pattern.search(path)
            if match is None:
                continue
            has_match = True
            integer_columns -= {name for name in integer_columns if not _is_whole_number(match[name])}
            if class_group:
                # An optional group that took no part in the match is None.
                labels.add(match[class_group] or "")
        if first_path and not has_match:
            raise UsageError(
                f"--label-from {options.label_from}: it matches no path, such as {first_path!r}. Correct it."
            )
        kinds = {name: ColumnKind(INT if name in integer_columns else STR) for name in columns} | options.column_kinds
        return cls(pattern, kinds, _open_classes(options, labels))

    @property
    def has_classes(self) -> bool:
        """Whether the expression has a group for the class."""
        return _find_class_group(self.pattern) > 0

    @property
    def features(self) -> tuple[Feature, ...]:
        """The schema of the columns."""
        return make_features(self.kinds)

    def read(self, path: str, origin: str) -> PathValues:
        """Return the values in a path.

        Args:
            path: path of the picture below the input or in its archive.
            origin: the picture, for messages.

        Raises:
            BadRecordError: the path does not match, its class is invalid, or a value is not of its kind.
        """
        match = self.pattern.search(path)
        if match is None:
            raise BadRecordError(origin, f"its path does not match --label-from {self.pattern.pattern}: {path!r}")
        group = _find_class_group(self.pattern)
        labels = (self.classes.resolve(match[group] or "", origin),) if group else ()
        for name, column_kind in self.kinds.items():
            problem = _find_problem(match[name] or "", column_kind)
            if problem:
                reason = f"{name!r} in its path {problem}; pass --column-types {name}=str to store text"
                raise BadRecordError(origin, reason)
        return PathValues(labels, convert_row(match.groupdict(), self.kinds))


def _find_class_group(pattern: re.Pattern[str]) -> int:
    """Return the index of the group for the class: `label` or, if there is none, the first without a name; 0 without either."""
    group_names = pattern.groupindex
    if _LABEL in group_names:
        return group_names[_LABEL]
    return next((index for index in range(1, pattern.groups + 1) if index not in group_names.values()), 0)


def _open_classes(options: SourceOptions, labels: set[str]) -> Classes:
    """Return the mapping to class names, given the labels in the first paths: integers are labels themselves, as in lists."""
    has_integers = are_integer_labels(labels, options.label_type)
    # If some of the first labels are numbers, but not all are integers from 0, a number is a name like any other. If none of
    # them is a number, a later number is an error.
    rejects_numbers = options.label_type is None and not any(map(is_number_label, labels))
    return Classes.open(options, has_integers=has_integers, rejects_numbers=rejects_numbers)


def _is_whole_number(text: str | None) -> bool:
    """Return whether a value shows that its column holds integers; it is None if its group took no part in the match."""
    return text is not None and _INT.fullmatch(text) is not None and _fits_int64(text)


def _fits_int64(text: str) -> bool:
    return len(text.lstrip("+-")) <= _MAX_DIGITS and fits_int64(int(text))


def _find_problem(text: str, column_kind: ColumnKind) -> str:
    """Return why a column of this kind cannot hold a value; an empty string if it can."""
    if column_kind.kind == STR or (not text and column_kind.missing is not None):
        return ""
    if column_kind.kind == INT:
        fits = _DECLARED_INT.fullmatch(text) is not None and _fits_int64(text)
        return "" if fits else f"is not a whole number: {text!r}"
    # A missing fraction is stored as NaN.
    if not text:
        return ""
    number = parse_float(text)
    if number is None:
        return f"is not a number: {text!r}"
    problem = float32_problem(number, rounds=column_kind.kind == FLOAT32)
    return f"is {text}, which {problem}" if problem else ""
