"""Columns of a table in memory: lists, of a single value if all are equal, and integers of the narrowest type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Types and their bounds: to ask numpy for these takes a sixth of the time of listing a class folder.
_NARROW = tuple((dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in (np.int8, np.int16, np.int32))


def shortest(column: list[Any]) -> list[Any]:
    """Return a column as one value if all are equal."""
    # Most columns of several values show it by these two.
    is_one = column[0] == column[-1] and column.count(column[0]) == len(column)
    return column[:1] if is_one else column


def shortest_values(column: list[Any]) -> list[Any]:
    """Return a column of values of any type as one value if all are the same, also in type."""
    return shortest(column) if _are_comparable(column) else column


def take_values(column: list[Any], rows: Sequence[int]) -> list[Any]:
    """Return the values of some rows."""
    return column if len(column) == 1 else [column[row] for row in rows]


def spread(column: list[Any], count: int) -> Iterable[Any]:
    """Return the column with a value for each of `count` rows."""
    return itertools.repeat(column[0], count) if len(column) == 1 else column


def join_columns(columns: Sequence[list[Any]], lengths: Sequence[int]) -> list[Any]:
    """Concatenate the columns of tables with these numbers of rows; a single value if all are equal."""
    first = columns[0]
    if all(len(column) == 1 and column[0] == first[0] for column in columns):
        return first
    return list(itertools.chain.from_iterable(map(spread, columns, lengths)))


def join_values(columns: Sequence[list[Any]], lengths: Sequence[int]) -> list[Any]:
    """Return the shortest form of a column of values of any type, as `shortest` does."""
    if _are_comparable([column[0] for column in columns]):
        return join_columns(columns, lengths)
    return list(itertools.chain.from_iterable(map(spread, columns, lengths)))


def _are_comparable(values: list[Any]) -> bool:
    """Return whether equal values are the same: 1, 1.0 and True are not, nor 0.0 and -0.0, and arrays compare by item."""
    kind = type(values[0])
    return kind in (str, bytes, int) and all(type(value) is kind for value in values)


def narrow(numbers: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Return the numbers, at least one, in the narrowest type; signed, since numpy combines uint64 and int64 to floats."""
    array = np.asarray(numbers, np.int64)
    low, high = int(array.min()), int(array.max())
    for dtype, smallest, largest in _NARROW:
        if smallest <= low and high <= largest:
            return array.astype(dtype)
    return array
