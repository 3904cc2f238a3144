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
    # Without wildcards, the last part is split off.
    first_wildcard = next((index for index, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    folder = "/".join(parts[:first_wildcard])
    # Repeated or final slashes make empty parts, which mean nothing.
    wildcard_parts = tuple(part for part in parts[first_wildcard:] if part)
    if wildcard_parts[-1:] == (_ANY_FOLDERS,):
        wildcard_parts = (*wildcard_parts, "*")
    # "" is the root of an absolute pattern, and the current folder of a relative one.
    return folder or ("/" if first_wildcard > 0 else "."), wildcard_parts


def expand(pattern: str) -> Iterator[tuple[Entry, str]]:
    """Yield every file and folder that a pattern matches, and its path below the folder before the first wildcard.

    Each is yielded once. The entries of a folder come in the order of their names, with a `/` after the names of folders.

    Raises:
        StorageError: a folder cannot be listed, or a match is a pipe, a socket or a device.
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
        StorageError: a folder cannot be listed, or a match is a pipe, a socket or a device.
    """
    positions = _find_start_positions(parts)
    yield from _walk(folder, "", parts, positions, only_folders=only_folders)


def matches(path: str, parts: tuple[str, ...]) -> bool:
    """Return whether `expand_below` yields a file of this path.

    Args:
        path: path of the file below the folder before the first wildcard.
        parts: parts of the pattern, see `split_pattern`.
    """
    *folders, name = path.split("/")
    # Indices of the parts that the next name may match.
    positions = _find_start_positions(parts)
    for folder in folders:
        # A folder that matches the whole pattern does not make the files in it match.
        positions = _advance(folder, parts, positions, is_folder=True) - {len(parts)}
    return len(parts) in _advance(name, parts, positions, is_folder=False)


def matching_names(folder: str, parts: tuple[str, ...], accept: Callable[[str], bool]) -> Iterator[str]:
    """Yield in order the names of the files in a folder that match and are accepted, and of the folders with one of them below.

    A folder inside is searched up to its first file that matches and is accepted.

    Args:
        folder: folder before the pattern's first wildcard.
        parts: parts of the pattern after it.
        accept: returns whether a file counts, given its path below the folder.

    Raises:
        StorageError: a folder cannot be listed, or a match is a pipe, a socket or a device.
    """
    positions = _find_start_positions(parts)
    # A pipe or a device is an error only if it matches.
    for entry in lazy_entries(folder, checked=False):
        next_positions = _advance(entry.name, parts, positions, is_folder=entry.is_folder)
        if not entry.is_folder:
            if len(parts) in next_positions and accept(entry.name):
                yield entry.checked().name
        elif inner_positions := next_positions - {len(parts)}:
            matches_below = _walk(entry.path, f"{entry.name}/", parts, inner_positions)
            if any(accept(path_below) for match, path_below in matches_below if not match.is_folder):
                yield entry.name


def _walk(
    folder: str, prefix: str, parts: tuple[str, ...], positions: set[int], *, only_folders: bool = False
) -> Iterator[tuple[Entry, str]]:
    """Yield the matches below a folder, each with its path: `prefix` and the path below the folder.

    Args:
        folder: folder to walk through.
        prefix: path of this folder below the pattern's folder, with a `/` at its end; empty for the pattern's folder itself.
        parts: parts of the pattern.
        positions: indices of the parts that a name in the folder may match. `**` makes several of them possible, and one walk
            follows all, so that nothing is yielded twice.
        only_folders: whether files are skipped.
    """
    # A pipe or a device is an error only if it matches.
    for entry in lazy_entries(folder, checked=False):
        next_positions = _advance(entry.name, parts, positions, is_folder=entry.is_folder)
        if len(parts) in next_positions and (entry.is_folder or not only_folders):
            yield entry.checked(), f"{prefix}{entry.name}"
        inner_positions = next_positions - {len(parts)}
        if entry.is_folder and inner_positions:
            yield from _walk(entry.path, f"{prefix}{entry.name}/", parts, inner_positions, only_folders=only_folders)


def _advance(name: str, parts: tuple[str, ...], positions: set[int], *, is_folder: bool) -> set[int]:
    """Return the positions in the pattern that the next part of a path may match, after `name` has matched one of `positions`.

    `len(parts)` among them means that the path up to `name` matches the whole pattern.

    Args:
        name: name of the current part of the path.
        parts: parts of the pattern.
        positions: indices of the parts that `name` may match.
        is_folder: whether the path up to `name` is a folder.
    """
    next_positions = {
        position + 1 for position in positions if parts[position] != _ANY_FOLDERS and _matches(name, parts[position])
    }
    # `**` may also match the next folder. It matches no hidden folder.
    if is_folder and not name.startswith("."):
        next_positions |= {position for position in positions if parts[position] == _ANY_FOLDERS}
    return _add_skippable(parts, next_positions)


def _find_start_positions(parts: tuple[str, ...]) -> set[int]:
    """Return the indices of the parts of a pattern that the first name of a path may match."""
    # A name always matches a part, so nothing can begin at the end of the pattern.
    return _add_skippable(parts, {0}) - {len(parts)}


def _add_skippable(parts: tuple[str, ...], positions: set[int]) -> set[int]:
    """Return the positions, and the position after each `**` among them, since a `**` may match no folder."""
    all_positions = set(positions)
    for position, part in enumerate(parts):
        if position in all_positions and part == _ANY_FOLDERS:
            all_positions.add(position + 1)
    return all_positions


def _matches(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
