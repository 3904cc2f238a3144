"""Columns of a table in memory: lists with a value for each row, or with one for all rows, and integers of the narrowest type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# (type, smallest, largest): getting the bounds from numpy each time would be a sixth of the time of listing a class folder.
_NARROW = tuple((dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in (np.int8, np.int16, np.int32))


def collapse(column: list[Any]) -> list[Any]:
    """Return a column of one value if all values of a column are equal; otherwise the column itself, which must not be empty."""
    # Most columns with different values already differ at their ends, which saves counting.
    are_equal = column[0] == column[-1] and column.count(column[0]) == len(column)
    return column[:1] if are_equal else column


def collapse_features(column: list[Any]) -> list[Any]:
    """Return a column of one value if all values of a column are equal and of one comparable type; otherwise the column itself."""
    return collapse(column) if _are_comparable(column) else column


def take_values(column: list[Any], rows: Sequence[int]) -> list[Any]:
    """Return the column of these rows; a column of one value is returned unchanged."""
    return column if len(column) == 1 else [column[row] for row in rows]


def spread(column: list[Any], count: int) -> Iterable[Any]:
    """Return the column with a value for each of `count` rows."""
    return itertools.repeat(column[0], count) if len(column) == 1 else column


def join_columns(columns: Sequence[list[Any]], lengths: Sequence[int]) -> list[Any]:
    """Concatenate columns; the result has one value if each column has only that value.

    Args:
        columns: the columns, each with a value for every row or one for all rows.
        lengths: number of rows of each column.
    """
    first_column = columns[0]
    if all(len(column) == 1 and column[0] == first_column[0] for column in columns):
        return first_column
    return list(itertools.chain.from_iterable(map(spread, columns, lengths)))


def join_features(columns: Sequence[list[Any]], lengths: Sequence[int]) -> list[Any]:
    """Concatenate columns of values of any type, as `join_columns` does; only a str, bytes or int can become the one value."""
    if _are_comparable([column[0] for column in columns]):
        return join_columns(columns, lengths)
    return list(itertools.chain.from_iterable(map(spread, columns, lengths)))


def _are_comparable(values: list[Any]) -> bool:
    """Return whether all values are str, all bytes, or all int: in other types, 1 == True and 0.0 == -0.0, which differ."""
    value_type = type(values[0])
    return value_type in (str, bytes, int) and all(type(value) is value_type for value in values)


def narrow(numbers: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Return one or more numbers in the narrowest signed type that holds all."""
    # Signed types, since NumPy converts uint64 combined with int64 to float64.
    array = np.asarray(numbers, np.int64)
    low, high = int(array.min()), int(array.max())
    for dtype, smallest, largest in _NARROW:
        if smallest <= low and high <= largest:
            return array.astype(dtype)
    return array
