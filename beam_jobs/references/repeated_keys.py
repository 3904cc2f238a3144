"""Search for a key that two rows of the input have, also in different splits, where their records would never meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.references.reference import key_digests

# A row: two halves of the digest of its key, and its place.
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("list", "<u4"), ("line", "<u8")])
KeyRows: TypeAlias = npt.NDArray[np.void]


class Repeat(NamedTuple):
    """Two rows with one key; repeats compare by the place of the later row.

    Attributes:
        list_index, line: index of the list of the later row, and the line.
        first_list_index, first_line: the same of the first row with the key.
        high, low: halves of the key's digest.
    """

    list_index: int
    line: int
    first_list_index: int
    first_line: int
    high: int
    low: int


def key_rows(keys: Sequence[str], lines: Sequence[int], list_index: int) -> KeyRows:
    """Return rows of one list.

    Args:
        keys: keys of n rows.
        lines: their lines.
        list_index: index of the list.
    """
    rows = np.empty(len(keys), _ROW)
    digests = key_digests(keys)
    rows["high"], rows["low"], rows["list"], rows["line"] = digests[:, 0], digests[:, 1], list_index, lines
    return rows


def group_rows(rows: KeyRows) -> list[tuple[int, bytes]]:
    """Return rows in 256 groups: equal keys are in one group."""
    groups = (rows["high"] >> np.uint64(56)).astype(np.intp)
    order = np.argsort(groups, kind="stable")
    rows, groups = rows[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return [
        (int(groups[start]), part.tobytes()) for start, part in zip(starts, np.split(rows, starts[1:]), strict=True)
    ]


def first_repeat(parts: Iterable[bytes]) -> Repeat | None:
    """Return the first row whose key an earlier row has; None without one."""
    data = b"".join(parts)
    if not data:
        return None
    rows = np.frombuffer(data, _ROW)
    rows = rows[np.lexsort([rows[name] for name in ("line", "list", "low", "high")])]
    same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    # The second of three rows with one key is the first repeat.
    seconds = np.flatnonzero(same & ~np.concatenate([[False], same[:-1]])) + 1
    if not len(seconds):
        return None
    earliest_pair = int(np.lexsort([rows[name][seconds] for name in ("line", "list")])[0])
    later, first = rows[seconds[earliest_pair]], rows[seconds[earliest_pair] - 1]
    return Repeat(
        list_index=int(later["list"]),
        line=int(later["line"]),
        first_list_index=int(first["list"]),
        first_line=int(first["line"]),
        high=int(later["high"]),
        low=int(later["low"]),
    )
