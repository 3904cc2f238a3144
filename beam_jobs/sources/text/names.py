"""The files of an input of text, found in ranges that workers list separately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from beam_jobs.file_names import is_ignored_name, is_ignored_path
from beam_jobs.sources.named_splits import take_first_names
from beam_jobs.text_files.document import TextFile
from tpudata.errors import SourceError
from tpudata.storage import (
    Entry,
    Range,
    expand,
    files_below,
    folder_ranges,
    is_pattern,
    matches,
    matching_names,
    split_pattern,
    storage_for,
)

_ANY_FOLDERS = "**"
_EVERYTHING: tuple[str, ...] = (_ANY_FOLDERS, "*")


class TextFiles(NamedTuple):
    """Files that are listed together.

    Attributes:
        path: a file, or a pattern whose matches are all listed; empty for a range of a folder.
        files: a range of the input's folder; empty with `path`.
        pattern: parts of the pattern that paths of the range below the folder must match; empty to take all.
        is_deep: whether the range includes files in subfolders.
    """

    path: str = ""
    files: Range = Range("")
    pattern: tuple[str, ...] = ()
    is_deep: bool = True


def list_first_names(path: str) -> list[str]:
    """Return the first names in the input's folder, see `take_first_names`: of files to convert, and of folders with such files.

    Raises:
        SourceError: no file matches, or the path does not exist.
    """
    entry = storage_for(path).stat(path)
    if entry is not None and not entry.is_folder:
        return [entry.name]
    if entry is not None:
        folder, pattern = path, _EVERYTHING
    elif is_pattern(path):
        folder, pattern = split_pattern(path)
        if storage_for(folder).stat(folder) is None:
            raise SourceError(f"{path}: there is no folder {folder}. Check the path.")
    else:
        raise SourceError(
            f"{path} does not exist. Name a file of text, a folder of such, or a pattern such as 'DIR/*.txt'."
        )
    names = take_first_names(matching_names(folder, pattern, _is_visible))
    if not names:
        raise SourceError(f"{path} has no files to convert. Add files, or pass another --input.")
    return names


def divide_input(path: str) -> Iterator[TextFiles]:
    """Yield the files of an input in parts, in order: ranges of its folder, or the whole input for one file and for a pattern that
    is expanded folder by folder.
    """
    entry = storage_for(path).stat(path)
    if entry is not None and not entry.is_folder:
        yield TextFiles(path)
        return
    folder = path
    is_deep = True
    pattern: tuple[str, ...] = ()
    if entry is None:
        folder, pattern = split_pattern(path)
        is_deep = len(pattern) > 1
        if is_deep and not (_ANY_FOLDERS in pattern and storage_for(folder).lists_deep):
            # This pattern is expanded folder by folder, not in ranges.
            yield TextFiles(path)
            return
    for files in folder_ranges(folder, deep=is_deep):
        yield TextFiles("", files, pattern, is_deep)


def list_files(part: TextFiles, ignored: list[str]) -> Iterator[TextFile]:
    """Yield the files of a part of an input, in the order of their names.

    Args:
        part: one of `divide_input`.
        ignored: list to which this function appends the path of each file and folder that it skips because of its name.
    """
    for entry, relative_path in _list_entries(part):
        if is_ignored_path(relative_path):
            ignored.append(entry.path)
        elif not entry.is_folder:
            yield TextFile(entry.path, relative_path, entry.size)


def _list_entries(part: TextFiles) -> Iterator[tuple[Entry, str]]:
    """Yield the files, each with its path below the input's folder.

    For a range without a pattern, also yield folders that are skipped because of their names, so that `list_files` reports them.
    """
    # This is not a range of a folder, but one file, or a pattern that is expanded folder by folder.
    if part.path:
        file = storage_for(part.path).stat(part.path)
        if file is not None:
            yield file, file.name
        else:
            matched = expand(part.path)
            yield from ((entry, relative_path) for entry, relative_path in matched if not entry.is_folder)
        return
    files, pattern = part.files, part.pattern
    if not part.is_deep:
        for entry in storage_for(files.folder).scan(files.folder, start=files.start, stop=files.stop):
            if not entry.is_folder and matches(entry.name, pattern):
                # Unlike `files_below`, `scan` may yield a pipe or a device.
                yield entry.checked(), entry.name
    elif pattern:
        # Skip hidden folders, whose names wildcards do not match.
        for entry, relative_path in files_below(files, lambda name: name.startswith(".")):
            if not entry.is_folder and matches(relative_path, pattern):
                yield entry, relative_path
    else:
        yield from files_below(files, is_ignored_name)


def _is_visible(relative_path: str) -> bool:
    return not is_ignored_path(relative_path)
