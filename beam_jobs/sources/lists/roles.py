"""The columns of a list that have a meaning: its columns of paths, classes and splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from beam_jobs.sources.options import SourceOptions
from tpudata.console.nearest import suggestion
from tpudata.errors import SourceError, UsageError

_PATHS = ("path", "file", "filename", "image")
_LABELS = ("label", "class", "labels", "classes")
_SPLIT = "split"


@dataclasses.dataclass(frozen=True)
class Roles:
    """The columns that have a meaning.

    Attributes:
        path: column of the paths.
        label: column of the classes; None if there is none, and with `--unlabelled`.
        split: column of the splits; None if there is none.
    """

    path: str
    label: str | None
    split: str | None

    @classmethod
    def infer(cls, columns: Iterable[str], options: SourceOptions, list_path: str) -> Roles:
        """Find the column for each role: the one that an option names or, if none does, the only one with a usual name.

        Args:
            columns: names of the list's columns.
            options: options that may name columns.
            list_path: path of the list, for messages.

        Raises:
            SourceError: no column has a usual name, or several have; the message names all columns.
            UsageError: a column that an option names is missing.
        """
        names = list(columns)
        label = None
        if not options.unlabelled:
            label = _pick_column(names, options.label_column, _LABELS, "--label-column", list_path)
        path = _pick_column(names, options.path_column, _PATHS, "--path-column", list_path)
        if options.split_column or any(name.lower() == _SPLIT for name in names):
            return cls(path, label, _pick_column(names, options.split_column, (_SPLIT,), "--split-column", list_path))
        return cls(path, label, split=None)


def is_path_column(name: str, options: SourceOptions) -> bool:
    """Return whether a column may hold the paths."""
    return name == options.path_column if options.path_column else name.lower() in _PATHS


def _pick_column(
    names: list[str], requested: str | None, usual_names: tuple[str, ...], flag: str, list_path: str
) -> str:
    """Return the requested column, or the only one with a usual name.

    Args:
        names: names of the list's columns.
        requested: the column that an option names; None if it names none.
        usual_names: the usual names, in lower case.
        flag: flag of that option, for messages.
        list_path: path of the list, for messages.

    Raises:
        SourceError: no column or several have a usual name.
        UsageError: the requested column is missing.
    """
    listing = ", ".join(map(repr, names))
    if requested is not None:
        if requested not in names:
            raise UsageError(
                f"{flag}: {list_path} has no column {requested!r}; it has {listing}{suggestion(requested, names)}"
            )
        return requested
    matches = [name for name in names if name.lower() in usual_names]
    if len(matches) != 1:
        choice = (
            f"{' and '.join(map(repr, matches))} could all be meant" if matches else f"none of {', '.join(usual_names)}"
        )
        raise SourceError(
            f"{list_path} has the columns {listing}: {choice}. Name the column with {flag}.{_hint_unlabelled(flag)}"
        )
    return matches[0]


def _hint_unlabelled(flag: str) -> str:
    return " Pass --unlabelled if the images have no classes." if flag == "--label-column" else ""
