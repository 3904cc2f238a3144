"""Search for a key that two rows of the input have, even if the rows are in different splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.references.reference import key_digests

# A row: the two halves of its key's digest, the index of its list, and its line there.
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("list", "<u4"), ("line", "<u8")])
KeyRows: TypeAlias = npt.NDArray[np.void]


class Repeat(NamedTuple):
    """Two rows with the same key. As tuples, repeats are in the order of their later rows.

    Attributes:
        list_index, line: index of the list of the later row, and the row's line there.
        first_list_index, first_line: index of the list of the first row with the key, and the row's line there.
        high, low: halves of the key's digest.
    """

    list_index: int
    line: int
    first_list_index: int
    first_line: int
    high: int
    low: int


def make_key_rows(keys: Sequence[str], lines: Sequence[int], list_index: int) -> KeyRows:
    """Return the digests of the keys of one list, each with its list and line, [n].

    Args:
        keys: keys of n rows.
        lines: number of each row's line in the list.
        list_index: index of the list.
    """
    rows = np.empty(len(keys), _ROW)
    digests = key_digests(keys)
    rows["high"] = digests[:, 0]
    rows["low"] = digests[:, 1]
    rows["list"] = list_index
    rows["line"] = lines
    return rows


def group_key_rows(rows: KeyRows) -> list[tuple[int, bytes]]:
    """Divide rows into at most 256 groups, so that equal keys are in one group; return (group, rows as bytes) of each."""
    # The uppermost 8 bits of the digest.
    groups = (rows["high"] >> np.uint64(56)).astype(np.intp)
    order = np.argsort(groups, kind="stable")
    rows, groups = rows[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return [
        (int(groups[start]), part.tobytes()) for start, part in zip(starts, np.split(rows, starts[1:]), strict=True)
    ]


def find_first_repeat(parts: Iterable[bytes]) -> Repeat | None:
    """Return the first row, by list and line, whose key an earlier row has, with that row; None if all keys differ.

    Args:
        parts: the bytes of `KeyRows`.
    """
    row_bytes = b"".join(parts)
    if not row_bytes:
        return None
    rows = np.frombuffer(row_bytes, _ROW)
    # By digest, then by list and line: `lexsort` takes its last key first.
    rows = rows[np.lexsort([rows[name] for name in ("line", "list", "low", "high")])]
    repeats_previous = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    # Of three rows with the same key, only the second counts: the third comes later.
    seconds = np.flatnonzero(repeats_previous & ~np.concatenate([[False], repeats_previous[:-1]])) + 1
    if not len(seconds):
        return None
    earliest = seconds[np.lexsort([rows[name][seconds] for name in ("line", "list")])[0]]
    later, first = rows[earliest], rows[earliest - 1]
    return Repeat(
        list_index=int(later["list"]),
        line=int(later["line"]),
        first_list_index=int(first["list"]),
        first_line=int(first["line"]),
        high=int(later["high"]),
        low=int(later["low"]),
    )
