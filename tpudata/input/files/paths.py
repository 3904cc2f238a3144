"""Paths of files without a manifest: patterns expanded, and arguments of their descriptions checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from tpudata.checks import check_argument
from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.storage import Entry, expand, is_pattern, storage_for

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def find_files(files: Paths) -> list[Entry]:
    """Return the files of paths and patterns, in their order; the files of a pattern are sorted by name.

    Raises:
        DatasetError: a path or pattern matches no file.
        UsageError: a file occurs twice.
        StorageError: a folder cannot be listed.
    """
    entries: list[Entry] = []
    for path in _list_paths(files):
        entry = storage_for(path).stat(path)
        if entry is None and is_pattern(path):
            matches = [match for match, _ in expand(path) if not match.is_folder]
            if not matches:
                raise DatasetError(f"files={path!r} matches no file. Name files, or a pattern that does.")
            entries += matches
        elif entry is None:
            raise DatasetError(f"files: {path} does not exist. Pass a file, or a pattern such as 'data/train-*'.")
        elif entry.is_folder:
            raise DatasetError(f"files: {path} is a folder. Name its files, such as {path.rstrip('/')}/*.")
        else:
            entries.append(entry)
    for path, count in Counter(entry.path for entry in entries).items():
        if count > 1:
            raise UsageError(f"files: {path} comes twice. Name each file once.")
    return entries


def check_paths(files: object) -> None:
    """Check that an argument is a path or a sequence of paths; UsageError if not."""
    is_sequence = isinstance(files, Sequence) and not isinstance(files, (str, bytes)) and len(files) > 0
    paths = list(files) if is_sequence else [files]  # type: ignore[call-overload]
    # The path of a PathLike may also be bytes, which are not taken.
    are_paths = all(
        isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str) and path for path in paths
    )
    check_argument("files", files, are_paths, "a path, a pattern such as 'data/train-*', or a list of these")


def check_label(label: str | None, names: Sequence[str]) -> None:
    """Check that a label is one of the features of a record; FeatureError if not."""
    if label is not None and label not in names:
        raise FeatureError(f"label={label!r}: the records have {', '.join(names) or 'no features'}. Name one of these.")


def _list_paths(files: Paths) -> list[str]:
    return [os.fspath(files)] if isinstance(files, (str, os.PathLike)) else [os.fspath(path) for path in files]
