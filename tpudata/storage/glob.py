"""Glob patterns, on any storage that can list a folder.

    *    any characters within one part of a path        [ab] [!ab]    one of, none of these characters
    ?    one character within one part                   **            as a whole part: any folders, also none

Wildcards pass over names that begin with a dot, as a shell's do, unless the part of the pattern begins with one.
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

    `/data/*/a.jpg` gives `("/data", ("*", "a.jpg"))`; a pattern without a folder before it gives `"."`. A `**` at the end is
    taken as `**/*`, everything below.
    """
    parts = pattern.split("/")
    first = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    folder = "/".join(parts[:first])
    rest = tuple(part for part in parts[first:] if part)
    if rest[-1:] == (_ANY_FOLDERS,):
        rest = (*rest, "*")
    # "" stands for the root of an absolute pattern, and for here in a relative one.
    return folder or ("/" if first > 0 else "."), rest


def expand(pattern: str) -> Iterator[tuple[Entry, str]]:
    """Yield every file and folder that a pattern matches, and its path below the pattern's fixed folder, with `/`.

    Each comes once, and what is in one folder comes sorted by name, that of a folder with a `/` after it.

    Raises:
        StorageError: the folder before the first wildcard is not there.
    """
    folder, parts = split_pattern(pattern)
    yield from expand_below(folder, parts)


def expand_below(folder: str, parts: tuple[str, ...]) -> Iterator[tuple[Entry, str]]:
    """Expand a pattern that `split_pattern` has split; see `expand`.

    Args:
        folder: what comes before the first wildcard.
        parts: of the pattern after it, between slashes.

    Raises:
        StorageError: a folder cannot be listed.
    """
    yield from _walk(folder, "", parts, _reached(parts, {0}) - {len(parts)})


def matches(below: str, parts: tuple[str, ...]) -> bool:
    """Return whether a path below a pattern's fixed folder is one that `expand_below` yields.

    Args:
        below: with `/`.
        parts: of the pattern, see `split_pattern`.
    """
    *folders, name = below.split("/")
    places = _reached(parts, {0})
    for folder in folders:
        places = _next(folder, parts, places, is_folder=True) - {len(parts)}
    return len(parts) in _next(name, parts, places, is_folder=False)


def matching_names(folder: str, parts: tuple[str, ...], accept: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names in a folder that a file matches, or a file below which does, in order; looks for one file of each.

    Args:
        folder: what comes before the pattern's first wildcard.
        parts: of the pattern after it.
        accept: of the path of a file below the folder, whether it counts.

    Raises:
        StorageError: a folder cannot be listed.
    """
    places = _reached(parts, {0}) - {len(parts)}
    for entry in lazy_entries(folder):
        matched = _next(entry.name, parts, places, is_folder=entry.is_folder)
        if not entry.is_folder:
            if len(parts) in matched and accept(entry.name):
                yield entry.name
        elif inner := matched - {len(parts)}:
            found = _walk(entry.path, f"{entry.name}/", parts, inner)
            if any(accept(below) for entry, below in found if not entry.is_folder):
                yield entry.name


def _walk(folder: str, below: str, parts: tuple[str, ...], places: set[int]) -> Iterator[tuple[Entry, str]]:
    """Walk a folder at which `places` say how many parts may be matched already: all at once, so that nothing comes twice."""
    for entry in lazy_entries(folder):
        matched = _next(entry.name, parts, places, is_folder=entry.is_folder)
        if len(parts) in matched:
            yield entry, f"{below}{entry.name}"
        inner = matched - {len(parts)}
        if entry.is_folder and inner:
            yield from _walk(entry.path, f"{below}{entry.name}/", parts, inner)


def _next(name: str, parts: tuple[str, ...], places: set[int], *, is_folder: bool) -> set[int]:
    """Return how many parts may be matched with a name, of those that are before it."""
    matched = {place + 1 for place in places if parts[place] != _ANY_FOLDERS and _matches(name, parts[place])}
    if is_folder and not name.startswith("."):
        matched |= {place for place in places if parts[place] == _ANY_FOLDERS}
    return _reached(parts, matched)


def _reached(parts: tuple[str, ...], places: set[int]) -> set[int]:
    """Return the places, and those after each `**` that matches no folder."""
    reached = set(places)
    for place, part in enumerate(parts):
        if place in reached and part == _ANY_FOLDERS:
            reached.add(place + 1)
    return reached


def _matches(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
