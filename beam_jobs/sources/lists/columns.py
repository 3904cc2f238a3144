"""The extra columns of a list, which become features.

The kind of an extra column is the narrowest that all its values fit, over the whole list: `int` (whole numbers that fit int64,
without leading zeros), `float`, else `str`. A value is missing if a CSV cell is empty, or a JSON value null or absent: it is NaN in
a `float` column and empty in a `str` column. In an `int` column it is an error, unless a value for it is declared: float32 would
change large numbers next to it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.labels import is_utf8
from beam_jobs.references.payload import Payload
from beam_jobs.sources.lists.place import RowPlace, earliest
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
    parse_float,
)
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature
from tpudata.json_values import abbreviate_json

# Declared numbers may have leading zeros.
_DECLARED_INT = re.compile(r"[+-]?[0-9]+")
_DECLARED_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|-?inf", re.IGNORECASE)
# From narrow to wide; a column is as wide as its widest value.
_KINDS = (INT, FLOAT, STR)
# Kinds of lists, in the same order.
_LISTS = tuple(LIST_KINDS)


class ListedImage(Payload):
    """An image file that a list names; entries of appends hash the text of its columns as UTF-8, not as ASCII escapes."""

    is_escaped = False


LISTED_IMAGE = ListedImage()


@dataclasses.dataclass
class Column:
    """Facts about one extra column in some rows.

    Attributes:
        widest: index in `_KINDS` of the widest value or item; None if all are missing.
        missing: the first row without a value, or None.
        inexact: the first row with a number that float32 would change, and the problem; or None.
        scalar: the first row with a value that is not a list, or None.
        listed: the first row with a list, or None.
    """

    widest: int | None = None
    missing: RowPlace | None = None
    inexact: tuple[RowPlace, str] | None = None
    scalar: RowPlace | None = None
    listed: RowPlace | None = None

    def merge(self, other: Column) -> Column:
        """Return the facts about these rows and those of `other`."""
        widest = [column.widest for column in (self, other) if column.widest is not None]
        firsts = (
            earliest(getattr(self, name), getattr(other, name)) for name in ("missing", "inexact", "scalar", "listed")
        )
        return Column(max(widest, default=None), *firsts)

    def add(self, value: Any, typed: bool, place: RowPlace, name: str) -> None:
        """Update the facts with one value; SourceError if it is neither a scalar nor a list of scalars."""
        if isinstance(value, list):
            self.listed = self.listed or place
            if None in value:
                raise SourceError(
                    f"{place}: column {name!r} has a list whose item {value.index(None)} is null. Remove it."
                )
            # In a list, an empty string is a value, not a missing one.
            kinds = [_KINDS.index(STR) if item == "" else _find_kind(item, typed, place, name) for item in value]
            items, kind = value, max((number for number in kinds if number is not None), default=0)
        else:
            scalar_kind = _find_kind(value, typed, place, name)
            if scalar_kind is None:
                self.missing = self.missing or place
                return
            self.scalar = self.scalar or place
            items, kind = [value], scalar_kind
        self.widest = max(self.widest or 0, kind)
        if self.inexact is None and kind != _KINDS.index(STR):
            self.inexact = next(filter(None, (_find_inexact(item, place, name) for item in items)), None)


@dataclasses.dataclass
class ColumnFacts:
    """Facts about the extra columns in some rows; facts about other rows can be merged, in any order.

    Attributes:
        columns: by name.
        first: the first row, or None.
    """

    columns: dict[str, Column] = dataclasses.field(default_factory=dict)
    first: RowPlace | None = None

    def merge(self, other: ColumnFacts) -> None:
        """Update these facts with those about other rows."""
        for name in sorted(self.columns.keys() | other.columns.keys()):
            # A column that one side lacks is missing from that side's first row on.
            ours = self.columns.get(name) or Column(missing=self.first)
            self.columns[name] = ours.merge(other.columns.get(name) or Column(missing=other.first))
        self.first = earliest(self.first, other.first)

    def kinds(self, declared: Mapping[str, ColumnKind]) -> dict[str, ColumnKind]:
        """Return the kinds by column, sorted by name.

        Args:
            declared: kinds by column, which take precedence.

        Raises:
            SourceError: values of a column are missing, or float32 would change them.
            UsageError: there is no column of a declared name.
        """
        names = sorted(self.columns)
        unknown = [name for name in declared if name not in self.columns]
        if unknown:
            raise UsageError(
                f"--column-types: no further column {unknown[0]!r}; there are: {', '.join(names) or 'none'}"
            )
        return {name: declared.get(name) or _infer_kind(name, self.columns[name]) for name in names}


class ColumnReader:
    """Reader of the extra columns of a list, row by row.

    Args:
        declared: kinds by column, which their values must fit.
        roles: columns that are not features.
        typed: whether values have types, as in JSONL; otherwise kinds are inferred from text.

    Attributes:
        facts: about the rows so far.
    """

    def __init__(self, declared: Mapping[str, ColumnKind], roles: Roles, typed: bool) -> None:
        self.facts = ColumnFacts()
        self._declared = declared
        self._typed = typed
        self._roles = (roles.path, roles.label, roles.split)

    def add(self, values: Mapping[str, Any], place: RowPlace) -> None:
        """Update the facts with one row; SourceError if a value has an unsupported type, or does not fit its declared kind."""
        columns = self.facts.columns
        for name in values.keys() - columns.keys():
            if not is_utf8(name):
                raise SourceError(
                    f"{place}: column {name!r} is not Unicode, which a feature's name must be. Rename it."
                )
            if name not in self._roles:
                # Missing from the list's first row on.
                columns[name] = Column(missing=self.facts.first)
        self.facts.first = self.facts.first or place
        for name, column in columns.items():
            column.add(values.get(name), self._typed, place, name)
        for name, declared in self._declared.items():
            # A CSV list without that column is reported at its end.
            if name in values or self._typed:
                _check_declared(values.get(name), declared, name, place)


def _infer_kind(name: str, column: Column) -> ColumnKind:
    """Return the kind of a column from its facts; SourceError if no kind stores all of its values unchanged."""
    if column.listed is not None and column.scalar is not None:
        raise SourceError(
            f"{column.listed}: column {name!r} is a list, and at {column.scalar} it is none. Write lists in all rows, or pass"
            f" --column-types {name}=str to store text."
        )
    kind = STR if column.widest is None else (_KINDS if column.listed is None else _LISTS)[column.widest]
    if kind == INT and column.missing is not None:
        raise SourceError(
            f"{column.missing}: column {name!r} has no value, and its values are whole numbers. Pass --column-types"
            f" {name}=int=0 to store 0 there (or another number), {name}=float for NaN, or {name}=str for text."
        )
    if kind in (FLOAT, _LISTS[1]) and column.inexact is not None:
        place, problem = column.inexact
        raise SourceError(
            f"{place}: {problem}, as the column has fractions too. Pass --column-types {name}=str to store text, or"
            f" {name}=float32 to round."
        )
    return ColumnKind(kind)


def features(kinds: Mapping[str, ColumnKind]) -> tuple[Feature, ...]:
    """Return the schema of the extra columns."""
    types = {
        INT: ("int64", "int64", None),
        FLOAT: ("float", "float32", None),
        FLOAT32: ("float", "float32", None),
        STR: ("bytes", "string", "utf8"),
    }
    return tuple(
        Feature(name, kind, dtype, (None,) if column.kind in LIST_KINDS else (), encoding)
        for name, column in kinds.items()
        for kind, dtype, encoding in [types[LIST_KINDS.get(column.kind, column.kind)]]
    )


def column_values(values: Mapping[str, Any], kinds: Mapping[str, ColumnKind]) -> dict[str, Any]:
    """Return the values of a row's extra columns."""
    return {name: _convert_value(values.get(name), kind) for name, kind in kinds.items()}


def _convert_value(value: Any, kind: ColumnKind) -> Any:
    """Return a value of a list as the column's kind stores it."""
    if kind.kind in LIST_KINDS:
        element_kind = ColumnKind(LIST_KINDS[kind.kind])
        return [_convert_value(element, element_kind) for element in value or ()]
    if value is None or value == "":
        if kind.missing is not None:
            return kind.missing
        # `ColumnFacts.kinds` rejects an int column with missing values and no value for them.
        return "" if kind.kind == STR else math.nan
    if kind.kind == STR:
        # In JSONL, a column of strings may hold numbers too; they are stored as JSON text.
        return value if isinstance(value, str) else json.dumps(value)
    return int(value) if kind.kind == INT else float(value)


def _find_kind(value: Any, typed: bool, place: RowPlace, name: str) -> int | None:
    """Return the narrowest kind that a value fits, as its index in `_KINDS`; None if it is missing.

    The kind of a string is inferred from its text, unless the list is `typed`.

    Raises:
        SourceError: the value is neither a string nor a number, or an integer does not fit int64.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if typed:
            return _KINDS.index("str")
        return _KINDS.index(find_kind_of_text(value))
    if isinstance(value, float):
        return _KINDS.index("float")
    if isinstance(value, int):
        if not _fits_int64(value):
            raise SourceError(f"{place}: column {name!r} is {value}, which does not fit int64. Write it as a string.")
        return _KINDS.index("int")
    raise SourceError(
        f"{place}: column {name!r} is {abbreviate_json(value)} (expected a number, a string, true, false or a list of these). Store"
        " it as a string, or remove the column."
    )


def _find_inexact(value: Any, place: RowPlace, name: str) -> tuple[RowPlace, str] | None:
    """Return the place and description of a number that float32 would change; None if it would not."""
    number = _parse_number(value)
    problem = "is too large for float32" if number is None else float32_problem(number)
    return (place, f"column {name!r} is {value}, which {problem}") if problem else None


def _parse_number(value: Any) -> int | float | None:
    if not isinstance(value, str):
        return value if isinstance(value, float) else int(value)
    return int(value) if find_kind_of_text(value) == INT else parse_float(value)


def _check_declared(value: Any, declared: ColumnKind, name: str, place: RowPlace) -> None:
    """Raise SourceError if a value does not fit a declared kind."""
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
        fits = _DECLARED_INT.fullmatch(text) is not None and _fits_int64(text)
        problem = ""
    else:
        number = parse_float(text) if _DECLARED_FLOAT.fullmatch(text) else None
        fits = number is not None
        exact = int(text) if _DECLARED_INT.fullmatch(text) and len(text) <= 40 else number
        problem = "" if exact is None else float32_problem(exact, rounds=declared.kind == FLOAT32)
    if not fits:
        raise SourceError(
            f"{row_and_column} is {value!r}; --column-types says {declared}. Fix the value, or declare it str."
        )
    if problem:
        raise SourceError(f"{row_and_column} is {text}, which {problem}. Declare it int or str, or float32 to round.")


def _fits_int64(value: int | str) -> bool:
    return len(str(value)) <= 20 and fits_int64(int(value))
