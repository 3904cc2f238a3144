"""Searches of annotation folders: files by suffix, first entries, and entries by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.file_names import is_ignored_name
from tpudata.storage import Entry, files_below, folder_ranges, lazy_entries, storage_for

# Number of bytes at the start of a file from which its form is recognized.
HEAD_BYTES = 1 << 16
# Number of entries at the start of a folder from which its form is recognized.
MAX_ENTRIES = 10_000
# Number of subfolders at the start of a folder that `find_first_file` searches.
_MAX_FOLDERS = 4


def list_paths_below(folder: str, suffixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, path below the folder) of each file with one of some suffixes at any depth, in the order of paths.

    Args:
        folder: path of the folder to list.
        suffixes: ends of file names, in lower case; the names are compared without case.
    """
    for files in folder_ranges(folder, deep=True):
        for entry, relative_path in files_below(files, is_ignored_name):
            if (
                not entry.is_folder
                and not is_ignored_name(entry.name)
                and relative_path.lower().endswith(tuple(suffixes))
            ):
                yield entry.path, relative_path


def list_first_entries(folder: str) -> list[Entry]:
    """Return the first 10,000 entries of a folder in the order of their names, without the ignored ones among them."""
    # The entries are not checked: a pipe or a device in the folder must not keep its form from being recognized.
    entries = itertools.islice(lazy_entries(folder, checked=False), MAX_ENTRIES)
    return [entry for entry in entries if not is_ignored_name(entry.name)]


def find_first_file(folder: str, suffixes: Sequence[str], skipped: Iterable[str] = (), depth: int = 3) -> str:
    """Return the path of a file with one of some suffixes in a folder or in its first subfolders; an empty string if none is found.

    Empty files, which show no form, are skipped: YOLO has one for each picture without objects.

    Args:
        folder: path of the folder to search.
        suffixes: ends of file names, in lower case; the names are compared without case.
        skipped: names of files to skip.
        depth: number of levels of folders that are searched; 1 for only the folder itself.
    """
    entries = list_first_entries(folder)
    for entry in entries:
        is_candidate = not entry.is_folder and entry.size and entry.name not in skipped
        if is_candidate and entry.name.lower().endswith(tuple(suffixes)):
            return entry.path
    subfolders = [entry.path for entry in entries if entry.is_folder][:_MAX_FOLDERS] if depth > 1 else []
    return next(filter(None, (find_first_file(path, suffixes, skipped, depth - 1) for path in subfolders)), "")


def pick_folder(entries: Iterable[Entry], *names: str) -> str:
    """Return the path of the first folder among entries that has one of these names; an empty string if there is none."""
    return next((entry.path for entry in entries if entry.is_folder and entry.name in names), "")


def pick_file(entries: Iterable[Entry], *names: str) -> str:
    """Return the path of the first file among entries that has one of these names; an empty string if there is none."""
    return next((entry.path for entry in entries if not entry.is_folder and entry.name in names), "")


def read_start(path: str) -> bytes:
    """Return the first 64 KiB of a file."""
    return storage_for(path).read_range(path, 0, HEAD_BYTES)
