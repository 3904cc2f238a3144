"""Listing folders of a disk that may have millions of files."""

from __future__ import annotations

import heapq
import operator
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence

from tpudata.storage.local.errors import named

# A range has so many names at least. Each is a pass over the whole folder, so they are few.
_RANGE_NAMES, _MOST_RANGES = 1 << 16, 32
# Names of which the cuts are chosen: those of the smallest checksums, so the same in whatever order a disk lists them.
_SAMPLED = 1 << 12


def names_in(folder: str, start: str, stop: str | None, limit: int | None) -> list[str]:
    """Return names in a folder, those of folders with a `/` after them, in order.

    Args:
        folder: to be listed.
        start: only names from `start` on and before `stop`.
        stop: end of the range, see `start`.
        limit: only so many, the first in order; memory holds no more.

    Raises:
        StorageError: there is no such folder.
    """
    found = (name for name in _names(folder) if start <= name and (stop is None or name < stop))
    return sorted(found) if limit is None else heapq.nsmallest(limit, found)


def cut_names(folder: str) -> Sequence[str]:
    """Return names at which a folder is cut into ranges of about equal numbers of names; none if it has few.

    Raises:
        StorageError: there is no such folder.
    """
    count = 0
    sample: list[tuple[int, str]] = []
    # Negative, so that the largest is the first to go.
    for count, name in enumerate(_names(folder), 1):
        if count <= _RANGE_NAMES:
            sample.append((0, name))
            continue
        if count == _RANGE_NAMES + 1:
            sample = _smallest(name for _, name in sample)
            heapq.heapify(sample)
        item = (-zlib.crc32(os.fsencode(name)), name)
        if item > sample[0]:
            heapq.heapreplace(sample, item)
    ranges = min(_MOST_RANGES, -(-count // _RANGE_NAMES))
    if ranges < 2:
        return ()
    names = sorted({name.rstrip("/") for _, name in sample})
    return tuple(names[len(names) * number // ranges] for number in range(1, ranges))


def _smallest(names: Iterable[str]) -> list[tuple[int, str]]:
    items = ((-zlib.crc32(os.fsencode(name)), name) for name in names)
    return heapq.nlargest(_SAMPLED, items, key=operator.itemgetter(0, 1))


def _names(folder: str) -> Iterator[str]:
    with named("listed", folder), os.scandir(folder) as entries:
        for entry in entries:
            yield f"{entry.name}/" if entry.is_dir() else entry.name
