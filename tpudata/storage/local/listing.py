"""Listing of folders of a disk with millions of files."""

from __future__ import annotations

import heapq
import operator
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence

from tpudata.storage.local.errors import translate_errors

# Least number of names in a range. Each range is a pass over the whole folder, so there are few.
RANGE_NAMES, _MOST_RANGES = 1 << 16, 32
# Number of names that the cuts are chosen from: those with the smallest checksums, so they do not depend on the disk's order.
SAMPLED_NAMES = 1 << 12


def list_names(folder: str, start: str, stop: str | None, limit: int | None) -> list[str]:
    """Return the names in a folder in order, with a `/` after those of folders.

    Args:
        folder: folder to list.
        start: first name of the range.
        stop: name after the end of the range.
        limit: number of names at most, the first in order; memory holds no more.

    Raises:
        StorageError: there is no such folder.
    """
    names = (name for name in _iterate_names(folder) if start <= name and (stop is None or name < stop))
    return sorted(names) if limit is None else heapq.nsmallest(limit, names)


def cut_names(folder: str, *, range_names: int = RANGE_NAMES, sampled_names: int = SAMPLED_NAMES) -> Sequence[str]:
    """Return the names that divide a folder into ranges of about equal size; none if it has few names.

    Args:
        folder: folder to cut.
        range_names: least number of names in a range.
        sampled_names: number of names that the cuts are chosen from, more than there are ranges.

    Raises:
        StorageError: there is no such folder.
    """
    count = 0
    sample: list[tuple[int, str]] = []
    # Negative, so that the heap drops the largest first.
    for count, name in enumerate(_iterate_names(folder), 1):
        if count <= range_names:
            sample.append((0, name))
            continue
        if count == range_names + 1:
            sample = _pick_smallest((name for _, name in sample), sampled_names)
            heapq.heapify(sample)
        ranked_name = (-zlib.crc32(os.fsencode(name)), name)
        if ranked_name > sample[0]:
            heapq.heapreplace(sample, ranked_name)
    ranges = min(_MOST_RANGES, -(-count // range_names))
    if ranges < 2:
        return ()
    names = sorted({name.rstrip("/") for _, name in sample})
    return tuple(names[len(names) * number // ranges] for number in range(1, ranges))


def _pick_smallest(names: Iterable[str], count: int) -> list[tuple[int, str]]:
    items = ((-zlib.crc32(os.fsencode(name)), name) for name in names)
    return heapq.nlargest(count, items, key=operator.itemgetter(0, 1))


def _iterate_names(folder: str) -> Iterator[str]:
    with translate_errors("listed", folder), os.scandir(folder) as entries:
        for entry in entries:
            yield f"{entry.name}/" if entry.is_dir() else entry.name
