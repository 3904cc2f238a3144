"""Ranges of the files below a folder, so that many workers list a large one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpudata.storage.interface import Entry
from tpudata.storage.select import storage_for

# Enough for callers that look only at the first entries, to recognize the form of an input.
_FIRST_ENTRIES = 1 << 14


class Range(NamedTuple):
    """Files below a folder that are listed together.

    Attributes:
        folder: folder that is listed.
        start: first name of the range, or first path if the store lists trees; empty for the start of the folder.
        stop: first name or path after the range; None for all from `start` on.
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
        StorageError: the folder does not exist, or something in it is neither a file nor a folder.
    """
    for entry in _scan_entries(folder):
        yield entry.checked() if checked else entry


def _scan_entries(folder: str) -> Iterator[Entry]:
    """Yield the entries of a folder in order, from a scan of the first 16,384 and, if there are more, a scan of the others."""
    storage = storage_for(folder)
    first_entries = list(storage.scan(folder, limit=_FIRST_ENTRIES))
    yield from first_entries
    if len(first_entries) == _FIRST_ENTRIES:
        last_entry = first_entries[-1]
        last_name = f"{last_entry.name}/" if last_entry.is_folder else last_entry.name
        # This range begins with the last entry again.
        yield from itertools.islice(storage.scan(folder, start=last_name), 1, None)


def folder_ranges(folder: str, *, deep: bool) -> Iterator[Range]:
    """Yield the ranges of a folder in order; a single range of the whole folder, if it is small.

    Args:
        folder: folder to list.
        deep: whether files in the folders below it count.

    Raises:
        StorageError: the folder cannot be listed. An object store has one range for a folder that does not exist.
    """
    storage = storage_for(folder)
    # A storage that lists folder by folder is cut between the names in the folder itself.
    names = storage.cuts(folder, deep=deep and storage.lists_deep)
    for start, stop in itertools.pairwise(["", *names, None]):
        # Only the last stop is None; mypy cannot know that.
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
    root = files.folder.rstrip("/")
    last_skipped_folder = _find_skipped_before(files, skip)
    for entry in storage.scan(files.folder, start=files.start, stop=files.stop, deep=True):
        relative_path = entry.path[len(root) + 1 :]
        skipped_folder = _find_skipped_folder(relative_path, skip)
        if not skipped_folder:
            yield entry, relative_path
        elif skipped_folder != last_skipped_folder:
            last_skipped_folder = skipped_folder
            name = skipped_folder.rpartition("/")[2]
            yield Entry(f"{root}/{skipped_folder}", name, size=0, is_folder=True), skipped_folder


def _find_skipped_folder(relative_path: str, skip: Callable[[str], bool]) -> str:
    """Return the topmost skipped folder that contains a path, or an empty string.

    The path and the result are relative to the folder that is listed.
    """
    *folders, _ = relative_path.split("/")
    depth = next((depth for depth, name in enumerate(folders, 1) if skip(name)), 0)
    return "/".join(folders[:depth])


def _find_skipped_before(files: Range, skip: Callable[[str], bool]) -> str:
    """Return the skipped folder inside which this range begins, if an earlier range has files of it and has therefore yielded it.

    Otherwise, return an empty string.
    """
    skipped_folder = _find_skipped_folder(files.start, skip)
    if not skipped_folder:
        return ""
    files_before = storage_for(files.folder).scan(
        files.folder, start=f"{skipped_folder}/", stop=files.start, limit=1, deep=True
    )
    return skipped_folder if next(files_before, None) is not None else ""


def _walk(files: Range, prefix: str, skip: Callable[[str], bool]) -> Iterator[tuple[Entry, str]]:
    """Yield the files of a range at any depth, each with `prefix` and its path below the range's folder.

    Folders are listed one by one; a skipped folder is itself yielded like a file.
    """
    for entry in storage_for(files.folder).scan(files.folder, start=files.start, stop=files.stop):
        if entry.checked().is_folder and not skip(entry.name):
            yield from _walk(Range(entry.path), f"{prefix}{entry.name}/", skip)
        else:
            yield entry, f"{prefix}{entry.name}"
