"""Ranges of the files below a folder, so that many workers list a large one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpudata.storage.interface import Entry
from tpudata.storage.select import storage_for

# Enough to recognise the form of an input.
_FIRST = 1 << 14


class Range(NamedTuple):
    """Files below a folder that are listed together.

    Attributes:
        folder: folder that is listed.
        start: first name in it, or first path below it if the store lists trees.
        stop: name or path after the end.
    """

    folder: str
    start: str = ""
    stop: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the range is all of the folder."""
        return not self.start and self.stop is None


def lazy_entries(folder: str, *, checked: bool = True) -> Iterator[Entry]:
    """Yield the entries of a folder, in order; the first ones before the whole folder of a disk is in memory.

    Args:
        folder: folder to list.
        checked: whether a pipe, a socket or a device is an error; otherwise the caller calls `Entry.checked`.

    Raises:
        StorageError: there is no such folder, or something in it is neither a file nor a folder.
    """
    for entry in _list_entries(folder):
        yield entry.checked() if checked else entry


def _list_entries(folder: str) -> Iterator[Entry]:
    storage = storage_for(folder)
    first = list(storage.scan(folder, limit=_FIRST))
    yield from first
    if len(first) == _FIRST:
        last_name = f"{first[-1].name}/" if first[-1].is_folder else first[-1].name
        # The next range begins with the last entry again.
        yield from itertools.islice(storage.scan(folder, start=last_name), 1, None)


def folder_ranges(folder: str, *, deep: bool) -> Iterator[Range]:
    """Yield the ranges of a folder in order; one of the whole folder, if it is small.

    Args:
        folder: folder to list.
        deep: whether files in the folders below it count.

    Raises:
        StorageError: there is no such folder.
    """
    storage = storage_for(folder)
    names = storage.cuts(folder, deep=deep and storage.lists_deep)
    for start, stop in itertools.pairwise(["", *names, None]):
        yield Range(folder, start or "", stop)


def files_below(files: Range, skip: Callable[[str], bool]) -> Iterator[tuple[Entry, str]]:
    """Yield the files of a range at any depth, in the order of their paths, each with its path below the folder.

    Args:
        files: a range of `folder_ranges`, with `deep`.
        skip: returns whether a folder of this name is skipped; a skipped folder itself is yielded once, in the first range that has
            a file of it.
    """
    storage = storage_for(files.folder)
    if not storage.lists_deep:
        yield from _walk(files, "", skip)
        return
    skipped = _find_skipped_before(files, skip)
    length = len(files.folder.rstrip("/")) + 1
    for entry in storage.scan(files.folder, start=files.start, stop=files.stop, deep=True):
        below = entry.path[length:]
        skipped_folder = _find_skipped(below, skip)
        if not skipped_folder:
            yield entry, below
        elif skipped != (skipped := skipped_folder):
            yield Entry(f"{files.folder.rstrip('/')}/{skipped}", skipped.rpartition("/")[2], 0, True), skipped


def _find_skipped(below: str, skip: Callable[[str], bool]) -> str:
    """Return the topmost skipped folder that contains a path, or an empty string."""
    *folders, _ = below.split("/")
    depth = next((depth for depth, name in enumerate(folders, 1) if skip(name)), 0)
    return "/".join(folders[:depth])


def _find_skipped_before(files: Range, skip: Callable[[str], bool]) -> str:
    """Return the skipped folder in which this range begins, if an earlier range has listed it, or an empty string."""
    skipped = _find_skipped(files.start, skip)
    if not skipped:
        return ""
    before = storage_for(files.folder).scan(files.folder, start=f"{skipped}/", stop=files.start, limit=1, deep=True)
    return skipped if any(True for _ in before) else ""


def _walk(files: Range, below: str, skip: Callable[[str], bool]) -> Iterator[tuple[Entry, str]]:
    for entry in storage_for(files.folder).scan(files.folder, start=files.start, stop=files.stop):
        if entry.checked().is_folder and not skip(entry.name):
            yield from _walk(Range(entry.path), f"{below}{entry.name}/", skip)
        else:
            yield entry, f"{below}{entry.name}"
