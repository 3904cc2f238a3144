"""Listing of folders of a disk with millions of files."""

from __future__ import annotations

import heapq
import itertools
import os
import zlib
from collections.abc import Iterator, Sequence

from tpudata.storage.local.errors import translate_errors

# A folder of more names is cut into ranges of about this many names or fewer.
RANGE_NAMES = 1 << 16
# Each range is a pass over the whole folder, so there are few; in larger folders they have more names.
_MAX_RANGES = 32
# Number of names that the cuts are chosen from: the names with the smallest checksums, so they do not depend on the disk's order.
SAMPLE_SIZE = 1 << 12


def list_names(folder: str, start: str, stop: str | None, limit: int | None) -> list[str]:
    """Return the names in a folder in order, with a `/` after the names of folders.

    Args:
        folder: folder to list.
        start: first name of the range.
        stop: first name after the range; None for all names from `start` on.
        limit: maximum number of names, the first in order; memory holds no more. None for all names.

    Raises:
        StorageError: the folder does not exist.
    """
    names = (name for name in _iterate_names(folder) if start <= name and (stop is None or name < stop))
    return sorted(names) if limit is None else heapq.nsmallest(limit, names)


def cut_names(folder: str, *, max_range_names: int = RANGE_NAMES, sample_size: int = SAMPLE_SIZE) -> Sequence[str]:
    """Return the names that divide a folder into ranges of about equal size; empty if it has at most `max_range_names` names.

    Args:
        folder: folder to cut.
        max_range_names: maximum number of names in a folder that is left whole; a larger one is cut once, into ranges of about
            this many names or fewer, but into at most 32 ranges, which are then larger.
        sample_size: number of names that the cuts are chosen from; must exceed the number of ranges.

    Raises:
        StorageError: the folder does not exist.
    """
    names = _iterate_names(folder)
    first_names = list(itertools.islice(names, max_range_names))
    # Most folders end here, without checksums.
    if len(first_names) < max_range_names:
        return ()
    name_count = len(first_names)
    # The names with the smallest checksums (`_rank` negates them) are a sample of all names, the same in every run.
    sample = heapq.nlargest(sample_size, map(_rank, first_names))
    del first_names  # Memory holds only the sample from here on.
    # The first item of the heap has the largest checksum of the sample; a name with a smaller one replaces it.
    heapq.heapify(sample)
    for name in names:
        name_count += 1
        ranked_name = _rank(name)
        if ranked_name > sample[0]:
            heapq.heapreplace(sample, ranked_name)
    range_count = min(_MAX_RANGES, -(-name_count // max_range_names))
    sampled_names = sorted({name.rstrip("/") for _, name in sample})
    return tuple(sampled_names[len(sampled_names) * index // range_count] for index in range(1, range_count))


def _rank(name: str) -> tuple[int, str]:
    """Return the negative checksum of a name, and the name: the smallest checksum ranks highest."""
    return -zlib.crc32(os.fsencode(name)), name


def _iterate_names(folder: str) -> Iterator[str]:
    """Yield the names in a folder in the disk's order, with a `/` after the names of folders."""
    with translate_errors("listed", folder), os.scandir(folder) as entries:
        for entry in entries:
            yield f"{entry.name}/" if entry.is_dir() else entry.name
