"""Glob patterns, on any storage that can list a folder.

    *    any characters within one part of a path        [ab] [!ab]    one of, none of these characters
    ?    one character within one part                   **            as a whole part: any folders, also none

Wildcards skip names that begin with a dot, as in a shell, unless the part of the pattern begins with one.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator

from tpudata.storage.interface import Entry
from tpudata.storage.ranges import lazy_entries

_WILDCARD = re.compile(r"[*?\[]")
_ANY_FOLDERS = "**"


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards."""
    return _WILDCARD.search(path) is not None


def split_pattern(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Split a pattern into the folder before its first part with a wildcard, and the parts from there on.

    `/data/*/a.jpg` gives `("/data", ("*", "a.jpg"))`; a pattern without a folder gives `"."`. A trailing `**` is `**/*`,
    everything below.
    """
    parts = pattern.split("/")
    first = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    folder = "/".join(parts[:first])
    rest = tuple(part for part in parts[first:] if part)
    if rest[-1:] == (_ANY_FOLDERS,):
        rest = (*rest, "*")
    # "" is the root of an absolute pattern, and the current folder of a relative one.
    return folder or ("/" if first > 0 else "."), rest


def expand(pattern: str) -> Iterator[tuple[Entry, str]]:
    """Yield every file and folder that a pattern matches, and its path below the pattern's fixed folder, with `/`.

    Each is yielded once; those of one folder are sorted by name, with a `/` after the names of folders.

    Raises:
        StorageError: the folder before the first wildcard does not exist.
    """
    folder, parts = split_pattern(pattern)
    yield from expand_below(folder, parts)


def expand_below(folder: str, parts: tuple[str, ...], *, only_folders: bool = False) -> Iterator[tuple[Entry, str]]:
    """Expand a pattern that `split_pattern` has split; see `expand`.

    Args:
        folder: folder before the first wildcard.
        parts: parts of the pattern after it, between slashes.
        only_folders: whether files are skipped, and pipes with them.

    Raises:
        StorageError: a folder cannot be listed.
    """
    yield from _walk(folder, "", parts, _add_skippable(parts, {0}) - {len(parts)}, only_folders=only_folders)


def matches(below: str, parts: tuple[str, ...]) -> bool:
    """Return whether a path below a pattern's fixed folder is one that `expand_below` yields.

    Args:
        below: the path, with `/`.
        parts: parts of the pattern, see `split_pattern`.
    """
    *folders, name = below.split("/")
    places = _add_skippable(parts, {0})
    for folder in folders:
        places = _advance(folder, parts, places, is_folder=True) - {len(parts)}
    return len(parts) in _advance(name, parts, places, is_folder=False)


def matching_names(folder: str, parts: tuple[str, ...], accept: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names in a folder that match with a file, or with a file below them, in order; stops at one file of each.

    Args:
        folder: folder before the pattern's first wildcard.
        parts: parts of the pattern after it.
        accept: returns whether a file counts, given its path below the folder.

    Raises:
        StorageError: a folder cannot be listed.
    """
    places = _add_skippable(parts, {0}) - {len(parts)}
    for entry in lazy_entries(folder, checked=False):
        matched = _advance(entry.name, parts, places, is_folder=entry.is_folder)
        if not entry.is_folder:
            if len(parts) in matched and accept(entry.name):
                yield entry.checked().name
        elif inner := matched - {len(parts)}:
            below_folder = _walk(entry.path, f"{entry.name}/", parts, inner)
            if any(accept(below) for entry, below in below_folder if not entry.is_folder):
                yield entry.name


def _walk(
    folder: str, below: str, parts: tuple[str, ...], places: set[int], *, only_folders: bool = False
) -> Iterator[tuple[Entry, str]]:
    """Walk a folder with all numbers of parts that may be matched already, so that nothing is yielded twice."""
    for entry in lazy_entries(folder, checked=False):
        matched = _advance(entry.name, parts, places, is_folder=entry.is_folder)
        if len(parts) in matched and (entry.is_folder or not only_folders):
            yield entry.checked(), f"{below}{entry.name}"
        inner = matched - {len(parts)}
        if entry.is_folder and inner:
            yield from _walk(entry.path, f"{below}{entry.name}/", parts, inner, only_folders=only_folders)


def _advance(name: str, parts: tuple[str, ...], places: set[int], *, is_folder: bool) -> set[int]:
    """Return the numbers of parts that may be matched after a name, given those before it."""
    matched = {place + 1 for place in places if parts[place] != _ANY_FOLDERS and _matches(name, parts[place])}
    if is_folder and not name.startswith("."):
        matched |= {place for place in places if parts[place] == _ANY_FOLDERS}
    return _add_skippable(parts, matched)


def _add_skippable(parts: tuple[str, ...], places: set[int]) -> set[int]:
    """Return these numbers of parts, with those after a `**` that matches no folder."""
    reached = set(places)
    for place, part in enumerate(parts):
        if place in reached and part == _ANY_FOLDERS:
            reached.add(place + 1)
    return reached


def _matches(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
