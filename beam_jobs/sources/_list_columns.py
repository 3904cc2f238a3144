"""What the columns of a list are: which hold path, classes and split, and what kind of feature each of the others is.

The kind of a further column is the narrowest that all its values fit, over the whole list: `int` (whole numbers that fit int64,
without leading zeros), `float`, else `str`. A value is missing where a CSV cell is empty, or a JSON value null or not there: it is
NaN in a numeric column, which is `float` then, and empty in a `str` column.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from beam_jobs.sources._options import SourceOptions
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature
from tpudata.nearest import suggestion

_PATHS = ("path", "file", "filename", "image")
_LABELS = ("label", "class", "labels", "classes")
_SPLIT = "split"
_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# What is declared is taken with leading zeros too.
_DECLARED_INT = re.compile(r"[+-]?[0-9]+")
_DECLARED_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|-?inf", re.IGNORECASE)
# From narrow to wide; a column is as wide as its widest value.
_KINDS = ("int", "float", "str")


@dataclasses.dataclass(frozen=True)
class Roles:
    """The columns that have a meaning.

    Attributes:
        path: column of the paths.
        label: column of the classes, or None.
        split: column of the splits, or None.
    """

    path: str
    label: str | None
    split: str | None

    @classmethod
    def find(cls, columns: Iterable[str], options: SourceOptions, source: str) -> Roles:
        """Finds the roles of columns, by what the options say or else by their names.

        Raises:
            SourceError: there is no such column, or more than one may be meant; names the columns that there are.
        """
        names = list(columns)
        label = None if options.unlabelled else _pick(names, options.label_column, _LABELS, "--label-column", source)
        path = _pick(names, options.path_column, _PATHS, "--path-column", source)
        if options.split_column or any(name.lower() == _SPLIT for name in names):
            return cls(path, label, _pick(names, options.split_column, (_SPLIT,), "--split-column", source))
        return cls(path, label, None)


def is_path_column(name: str, options: SourceOptions) -> bool:
    """Whether a column may hold the paths."""
    return name == options.path_column if options.path_column else name.lower() in _PATHS


class ColumnKinds:
    """Learns the kinds of the further columns from the rows of a list.

    Args:
        declared: `"int"`, `"float"` or `"str"` by column, which their values must fit.
        roles: columns that are no features.
        typed: values say their kind themselves, as in JSONL; otherwise strings are taken by what they look like.
    """

    def __init__(self, declared: Mapping[str, str], roles: Roles, typed: bool) -> None:
        self._declared = declared
        self._typed = typed
        self._roles = (roles.path, roles.label, roles.split)
        self._widest: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._rows = 0

    def add(self, values: Mapping[str, Any], source: str) -> None:
        """Learns from one row; SourceError where a value is no scalar, or does not fit what is declared."""
        self._rows += 1
        for name, value in values.items():
            if name in self._roles:
                continue
            kind = _kind(value, self._typed, source, name)
            self._present[name] = self._present.get(name, 0) + (kind is not None)
            self._widest[name] = max(self._widest.get(name, 0), kind or 0)
        for name, declared in self._declared.items():
            # A CSV list without that column is told so at its end.
            if (name in values or self._typed) and not _is_declared(values.get(name), declared):
                raise SourceError(f"{source}: column {name!r} is {values.get(name)!r}; --column-types says {declared}.")

    def kinds(self) -> dict[str, str]:
        """`"int"`, `"float"` or `"str"` by column, sorted by name."""
        unknown = [name for name in self._declared if name not in self._widest]
        if unknown:
            known = ", ".join(self._widest) or "none"
            raise UsageError(f"--column-types: no further column {unknown[0]!r}; there are: {known}")
        return {name: self._declared.get(name) or self._learnt(name) for name in sorted(self._widest)}

    def _learnt(self, name: str) -> str:
        if self._present[name] == 0:
            return "str"
        kind = _KINDS[self._widest[name]]
        return "float" if kind == "int" and self._present[name] < self._rows else kind


def features(kinds: Mapping[str, str]) -> tuple[Feature, ...]:
    """The schema of the further columns."""
    made = {
        "int": ("int64", "int64", None),
        "float": ("float", "float32", None),
        "str": ("bytes", "string", "utf8"),
    }
    return tuple(Feature(name, made[kind][0], made[kind][1], encoding=made[kind][2]) for name, kind in kinds.items())


def extra_json(values: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """The further columns of a row as a JSON object (with NaN, as Python writes it), or nothing where there are none."""
    if not kinds:
        return ""
    return json.dumps({name: _value(values.get(name), kind) for name, kind in kinds.items()}, ensure_ascii=False)


def _value(value: Any, kind: str) -> int | float | str:
    missing = value is None or value == ""
    if kind == "str":
        # A column of strings may hold numbers beside them in a JSONL list: as they were written.
        return "" if missing else value if isinstance(value, str) else json.dumps(value)
    if missing:
        return math.nan
    return int(value) if kind == "int" else float(value)


def _kind(value: Any, typed: bool, source: str, name: str) -> int | None:
    """The narrowest kind that a value fits, as its place in `_KINDS`; None where it is missing.

    A string is taken by what it looks like, unless the list is `typed`: then a string is one.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if typed:
            return _KINDS.index("str")
        if _INT.fullmatch(value):
            # A longer number is an identifier: as a float it would lose its last digits.
            return _KINDS.index("int" if _fits_int64(value) else "str")
        return _KINDS.index("float" if _FLOAT.fullmatch(value) else "str")
    if isinstance(value, float):
        return _KINDS.index("float")
    if isinstance(value, int):
        if not _fits_int64(value):
            raise SourceError(f"{source}: column {name!r} is {value}, which does not fit int64. Write it as a string.")
        return _KINDS.index("int")
    raise SourceError(
        f"{source}: column {name!r} is {json.dumps(value)[:80]}; further columns are numbers, strings or true and false."
    )


def _is_declared(value: Any, declared: str) -> bool:
    """Whether a value may stand in a column of a declared kind; only an `int` column has no way to say that one is missing."""
    if isinstance(value, bool):
        return True
    text = "" if value is None else str(value)
    if declared == "str" or (declared == "float" and not text):
        return True
    if declared == "int":
        return _DECLARED_INT.fullmatch(text) is not None and _fits_int64(text)
    return _DECLARED_FLOAT.fullmatch(text) is not None


def _fits_int64(value: int | str) -> bool:
    return len(str(value)) <= 20 and -(2**63) <= int(value) < 2**63


def _pick(names: list[str], said: str | None, usual: tuple[str, ...], flag: str, source: str) -> str:
    known = ", ".join(map(repr, names))
    if said is not None:
        if said not in names:
            raise UsageError(f"{flag}: {source} has no column {said!r}; it has {known}{suggestion(said, names)}")
        return said
    found = [name for name in names if name.lower() in usual]
    if len(found) != 1:
        what = f"{' and '.join(map(repr, found))}, of which one is meant" if found else f"none of {', '.join(usual)}"
        raise SourceError(f"{source} has the columns {known}: {what}. Name the column with {flag}.{_unlabelled(flag)}")
    return found[0]


def _unlabelled(flag: str) -> str:
    return " Say --unlabelled where the images have no classes." if flag == "--label-column" else ""
