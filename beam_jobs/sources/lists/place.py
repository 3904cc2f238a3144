"""Places in lists, which compare in the order of rows, so that any number of workers reports the same first defect."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

_Row = TypeVar("_Row", bound=tuple[Any, ...])


class RowPlace(NamedTuple):
    """One row of the lists of an input.

    Attributes:
        list_index: index of its list among all.
        line: number of its last line in the list, counted from 1.
        path: path of the list.
    """

    list_index: int
    line: int
    path: str

    def __str__(self) -> str:
        """Return the name of the row for messages."""
        return f"{self.path} line {self.line}"


def find_earliest(first: _Row | None, second: _Row | None) -> _Row | None:
    """Return the earlier of two places, or of two tuples that begin with a place; None only if both are None."""
    return min((row for row in (first, second) if row is not None), default=None)
