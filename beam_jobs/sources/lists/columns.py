"""The extra columns of a list, which become features.

The kind of an extra column is the narrowest that fits all its values in the whole list: `int` (integers that fit int64,
without leading zeros), `float`, otherwise `str`. A value is missing if a CSV cell is empty, or a JSON value null or absent: it is
stored as NaN in a `float` column and as an empty string in a `str` column. In an `int` column it is an error, unless a substitute
is declared: as a `float` column, it might change large numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.labels import is_utf8
from beam_jobs.references.reference import Payload
from beam_jobs.sources.lists.place import RowPlace, find_earliest
from beam_jobs.sources.lists.roles import Roles
from beam_jobs.values.column_kinds import (
    FLOAT,
    FLOAT32,
    INT,
    LIST_KINDS,
    STR,
    ColumnKind,
    find_kind_of_text,
    fits_int64,
    float32_problem,
    get_item_kind,
    parse_float,
    text_fits_int64,
)
from tpudata.error_text.values import format_value
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature
from tpudata.json_values import abbreviate_json

# Declared numbers may have leading zeros.
_DECLARED_INT = re.compile(r"[+-]?[0-9]+")
_DECLARED_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|-?inf", re.IGNORECASE)
# From narrow to wide; a column is as wide as its widest value. A rank is an index in `_KINDS`.
_KINDS = (INT, FLOAT, STR)
_INT_RANK, _FLOAT_RANK, _STR_RANK = range(len(_KINDS))
# Kinds of lists whose items are of `_KINDS`, in the same order.
_KINDS_OF_LISTS = tuple(LIST_KINDS)
# Characters of an integer that is compared exactly: the largest float32 has 39 digits, and there may be a sign.
_MAX_EXACT_CHARACTERS = 40
# kind, dtype and encoding of a feature, by the kind of its column or of the items of its lists.
_FEATURE_TYPES: Mapping[str, tuple[str, str, str | None]] = {
    INT: ("int64", "int64", None),
    FLOAT: ("float", "float32", None),
    FLOAT32: ("float", "float32", None),
    STR: ("bytes", "string", "utf8"),
}


class ListedImage(Payload):
    """An image file that a list names; the hash of its input takes columns as UTF-8 instead of as ASCII escapes."""

    is_escaped = False


LISTED_IMAGE = ListedImage()


@dataclasses.dataclass
class ExtraColumnFacts:
    """Facts about one extra column in some rows.

    Attributes:
        widest_rank: rank of the widest value or item; None if all are missing.
        first_missing: the first row without a value; None if all rows have one.
        first_inexact: the first row with a number that float32 would change, and a description of that number; None if none has.
        first_scalar: the first row with a value that is not a list; None if there is none.
        first_list: the first row with a list; None if there is none.
    """

    widest_rank: int | None = None
    first_missing: RowPlace | None = None
    first_inexact: tuple[RowPlace, str] | None = None
    first_scalar: RowPlace | None = None
    first_list: RowPlace | None = None

    def merge(self, other: ExtraColumnFacts) -> ExtraColumnFacts:
        """Return the facts about the rows of this column and of `other`."""
        ranks = [column.widest_rank for column in (self, other) if column.widest_rank is not None]
        return ExtraColumnFacts(
            widest_rank=max(ranks, default=None),
            first_missing=find_earliest(self.first_missing, other.first_missing),
            first_inexact=find_earliest(self.first_inexact, other.first_inexact),
            first_scalar=find_earliest(self.first_scalar, other.first_scalar),
            first_list=find_earliest(self.first_list, other.first_list),
        )

    def add(self, value: Any, *, has_types: bool, place: RowPlace, name: str) -> None:
        """Update the facts with one value.

        Args:
            value: the value; None or an empty string if it is missing.
            has_types: whether values have types, as in JSONL; then a string is a `str` even if it looks like a number.
            place: row of the value.
            name: name of the column, for messages.

        Raises:
            SourceError: the value is neither a scalar nor a list of scalars, or an integer does not fit int64.
        """
        if isinstance(value, list):
            self.first_list = self.first_list or place
            if None in value:
                raise SourceError(
                    f"{place}: column {name!r} has a list whose item {value.index(None)} is null. Remove it."
                )
            elements = value
        else:
            if value is None or value == "":
                self.first_missing = self.first_missing or place
                return
            self.first_scalar = self.first_scalar or place
            elements = [value]
        # An empty list fits every kind, so it counts as the narrowest.
        rank = max(
            (_find_rank(element, has_types=has_types, place=place, name=name) for element in elements),
            default=_INT_RANK,
        )
        self.widest_rank = max(self.widest_rank or _INT_RANK, rank)
        if self.first_inexact is None and rank != _STR_RANK:
            self.first_inexact = next(filter(None, (_find_inexact(element, place, name) for element in elements)), None)


@dataclasses.dataclass
class ColumnFacts:
    """Facts about all extra columns in some rows; facts about other rows can be merged, in any order.

    Attributes:
        columns: facts about each column, by name.
        first_row: the first row; None before any.
    """

    columns: dict[str, ExtraColumnFacts] = dataclasses.field(default_factory=dict)
    first_row: RowPlace | None = None

    def merge(self, other: ColumnFacts) -> None:
        """Update these facts with those about other rows."""
        for name in sorted(self.columns.keys() | other.columns.keys()):
            # A column that one side lacks is missing from that side's first row on.
            column = self.columns.get(name) or ExtraColumnFacts(first_missing=self.first_row)
            self.columns[name] = column.merge(
                other.columns.get(name) or ExtraColumnFacts(first_missing=other.first_row)
            )
        self.first_row = find_earliest(self.first_row, other.first_row)

    def find_kinds(self, declared: Mapping[str, ColumnKind]) -> dict[str, ColumnKind]:
        """Return the kinds by column, sorted by name.

        Args:
            declared: kinds by column, which take precedence.

        Raises:
            SourceError: no kind can store all values of a column unchanged.
            UsageError: there is no column of a declared name.
        """
        names = sorted(self.columns)
        unknown_name = next((name for name in declared if name not in self.columns), None)
        if unknown_name is not None:
            raise UsageError(
                f"--column-types: no extra column {unknown_name!r}; there are: {', '.join(names) or 'none'}"
            )
        return {name: declared.get(name) or _infer_kind(name, self.columns[name]) for name in names}


class ColumnReader:
    """Reader of the extra columns of a list, row by row.

    Args:
        declared: kinds by column, which their values must fit.
        roles: columns that are not features.
        has_types: whether values have types, as in JSONL; otherwise kinds are inferred from text.

    Attributes:
        facts: facts about the rows so far.
    """

    def __init__(self, declared: Mapping[str, ColumnKind], roles: Roles, *, has_types: bool) -> None:
        self.facts = ColumnFacts()
        self._declared = declared
        self._has_types = has_types
        self._roles = (roles.path, roles.label, roles.split)

    def add(self, values: Mapping[str, Any], place: RowPlace) -> None:
        """Update the facts with one row.

        Raises:
            SourceError: a column's name is empty or not Unicode, or a value is of an unsupported type or does not fit its declared
                kind.
        """
        columns = self.facts.columns
        for name in values.keys() - columns.keys():
            if not is_utf8(name):
                raise SourceError(
                    f"{place}: column {name!r} is not Unicode, which a feature's name must be. Rename it."
                )
            if name not in self._roles:
                if not name:
                    raise SourceError(f"{place}: a column has no name, which a feature needs. Give it one.")
                # The column is missing from the list's first row on.
                columns[name] = ExtraColumnFacts(first_missing=self.facts.first_row)
        self.facts.first_row = self.facts.first_row or place
        for name, column in columns.items():
            column.add(values.get(name), has_types=self._has_types, place=place, name=name)
        for name, declared in self._declared.items():
            # `ColumnFacts.find_kinds` reports a CSV list that lacks the column.
            if name in values or self._has_types:
                _check_declared(values.get(name), declared, name, place)


def _infer_kind(name: str, column: ExtraColumnFacts) -> ColumnKind:
    """Return the kind of a column from its facts; SourceError if no kind stores all of its values unchanged."""
    if column.first_list is not None and column.first_scalar is not None:
        raise SourceError(
            f"{column.first_list}: column {name!r} is a list, and at {column.first_scalar} it is not. Write lists in all rows, or"
            f" pass --column-types {name}=str to store text."
        )
    kinds = _KINDS if column.first_list is None else _KINDS_OF_LISTS
    kind = STR if column.widest_rank is None else kinds[column.widest_rank]
    if kind == INT and column.first_missing is not None:
        raise SourceError(
            f"{column.first_missing}: column {name!r} has no value, and its values are whole numbers. Pass --column-types"
            f" {name}=int=0 to store 0 there (or another number), {name}=float for NaN, or {name}=str for text."
        )
    if column.widest_rank == _FLOAT_RANK and column.first_inexact is not None:
        place, problem = column.first_inexact
        raise SourceError(
            f"{place}: {problem}, as the column has fractions too. Pass --column-types {name}=str to store text, or"
            f" {name}=float32 to round."
        )
    return ColumnKind(kind)


def make_features(kinds: Mapping[str, ColumnKind]) -> tuple[Feature, ...]:
    """Return the schema of extra columns, given the kind of each by name."""
    return tuple(_make_feature(name, column_kind.kind) for name, column_kind in kinds.items())


def _make_feature(name: str, kind: str) -> Feature:
    """Return the feature of a column of a kind, such as `int` or `ints`."""
    example_list, dtype, encoding = _FEATURE_TYPES[get_item_kind(kind)]
    return Feature(name, example_list, dtype, (None,) if kind in LIST_KINDS else (), encoding)


def convert_row(values: Mapping[str, Any], kinds: Mapping[str, ColumnKind]) -> dict[str, Any]:
    """Return the values that the extra columns store for a row, by name.

    Args:
        values: values of the row, by column; a column may be missing.
        kinds: kinds of the extra columns, by name.
    """
    return {name: _convert_value(values.get(name), column_kind) for name, column_kind in kinds.items()}


def _convert_value(value: Any, column_kind: ColumnKind) -> Any:
    """Return what a column of this kind stores for a row's value: for a missing one the substitute, an empty string or NaN."""
    if column_kind.kind in LIST_KINDS:
        item_kind = ColumnKind(get_item_kind(column_kind.kind))
        return [_convert_value(item, item_kind) for item in value or ()]
    if value is None or value == "":
        if column_kind.missing is not None:
            return column_kind.missing
        # Callers have rejected an int column that lacks a value and has no substitute for it.
        return "" if column_kind.kind == STR else math.nan
    if column_kind.kind == STR:
        # In JSONL, a column of strings may also hold numbers; they are stored as JSON text.
        return value if isinstance(value, str) else json.dumps(value)
    return int(value) if column_kind.kind == INT else float(value)


def _find_rank(value: Any, *, has_types: bool, place: RowPlace, name: str) -> int:
    """Return the rank of the narrowest kind that fits a value: its index in `_KINDS`.

    Args:
        value: the value, or an item of a list; it is not missing.
        has_types: whether values have types, as in JSONL; then a string is a `str` even if it looks like a number.
        place: row of the value, for messages.
        name: name of the column, for messages.

    Raises:
        SourceError: the value is not a scalar, or an integer does not fit int64.
    """
    if isinstance(value, str):
        return _STR_RANK if has_types or not value else _KINDS.index(find_kind_of_text(value))
    if isinstance(value, float):
        return _FLOAT_RANK
    if isinstance(value, int):
        if not fits_int64(value):
            raise SourceError(
                f"{place}: column {name!r} is {format_value(value)}, which does not fit int64. Write it as a string."
            )
        return _INT_RANK
    raise SourceError(
        f"{place}: column {name!r} is {abbreviate_json(value)} (expected a number, a string, true, false or a list of these). Store"
        " it as a string, or remove the column."
    )


def _find_inexact(value: Any, place: RowPlace, name: str) -> tuple[RowPlace, str] | None:
    """Return the row and a description of a number that float32 would change; None if it would not."""
    number = _parse_number(value)
    problem = "is too large for float32" if number is None else float32_problem(number)
    return (place, f"column {name!r} is {value}, which {problem}") if problem else None


def _parse_number(value: Any) -> int | float | None:
    """Return a number, a bool as an integer, or the number in a string; None if a number in a string exceeds float64."""
    if not isinstance(value, str):
        return value if isinstance(value, float) else int(value)
    return int(value) if find_kind_of_text(value) == INT else parse_float(value)


def _check_declared(value: Any, declared: ColumnKind, name: str, place: RowPlace) -> None:
    """Raise SourceError if a value does not fit a declared kind.

    Args:
        value: the value; None or an empty string if it is missing.
        declared: declared kind of the column.
        name: name of the column, for messages.
        place: row of the value, for messages.
    """
    # true and false are stored as 1 and 0.
    if declared.kind == STR or isinstance(value, bool):
        return
    row_and_column = f"{place}: column {name!r}"
    text = "" if value is None else str(value)
    if not text:
        if declared.kind == INT and declared.missing is None:
            raise SourceError(
                f"{row_and_column} has no value; --column-types says int. Pass {name}=int=0 to store 0 there, or another number."
            )
        return
    if declared.kind == INT:
        fits = _DECLARED_INT.fullmatch(text) is not None and text_fits_int64(text)
        problem = ""
    else:
        number: int | float | None = parse_float(text) if _DECLARED_FLOAT.fullmatch(text) else None
        fits = number is not None
        # A large integer is compared as an integer, since its float64 may be rounded already.
        if _DECLARED_INT.fullmatch(text) and len(text) <= _MAX_EXACT_CHARACTERS:
            number = int(text)
        problem = "" if number is None else float32_problem(number, rounds=declared.kind == FLOAT32)
    if not fits:
        raise SourceError(
            f"{row_and_column} is {value!r}; --column-types says {declared}. Fix the value, or declare it str."
        )
    if problem:
        raise SourceError(f"{row_and_column} is {text}, which {problem}. Declare it int or str, or float32 to round.")
