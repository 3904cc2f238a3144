"""Options of an input besides its path, checked once at the door."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.options import ConvertOptions
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, STR, ColumnKind
from tpudata.console.flags import FlagParser, flag_type
from tpudata.errors import UsageError

COLUMN_TYPES = (INT, FLOAT, FLOAT32, STR)
LABEL_TYPES = (INT, STR)
_TYPED_COLUMN = re.compile(rf"(.+?)=((?:{'|'.join(COLUMN_TYPES)})(?:=.*)?)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The way an input is read.

    Attributes:
        source: name of the source, see beam_jobs/sources/table.py; None finds it by what the input is.
        labels_file: file of class names, a line each, that fixes the classes and their order.
        unlabelled: records have no classes.
        path_column: column of a list that holds the paths; None finds it by its name.
        label_column: column of a list that holds the classes; None finds it by its name.
        split_column: column of a list that holds the splits; None takes a column named "split" if there is one.
        label_separator: stands between several classes in one cell of a CSV list; None where a cell is one class.
        label_type: `"int"` if labels, or the names of class folders, are whole numbers that stand for themselves, `"str"` if they
            are names; None finds out by the labels, and rejects a mixture; folders then have names.
        column_types: `"int"`, `"float"`, `"float32"` or `"str"` by column, in place of what the values look like; with `=VALUE`
            after it, what missing values are stored as.
        raw_tsv: whether quotes in lists separated by tabs are ordinary characters.
        source_args: own arguments of a source of an installed package, as text by name.

    Raises:
        UsageError: values that do not fit each other.
    """

    source: str | None = None
    labels_file: str | None = None
    unlabelled: bool = False
    path_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    label_separator: str | None = None
    label_type: str | None = None
    column_types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raw_tsv: bool = False
    source_args: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("labels_file", "path_column", "label_column", "split_column", "label_separator"):
            if getattr(self, name) == "":
                raise UsageError(f"--{_flag(name)} is empty. Pass a value, or omit the flag")
        if self.source_args and self.source is None:
            raise UsageError("--source-arg: the source that takes it is not named. Pass --source=NAME, too.")
        if self.label_type not in (None, *LABEL_TYPES):
            raise UsageError(f"--label-type is {self.label_type!r}; allowed are {', '.join(LABEL_TYPES)}")
        for name in ("labels_file", "label_column", "label_separator", "label_type"):
            if self.unlabelled and getattr(self, name) is not None:
                raise UsageError(f"--unlabelled and --{_flag(name)}: choose one")
        for column, kind in self.column_kinds.items():
            if kind.kind not in COLUMN_TYPES:
                raise UsageError(
                    f"--column-types: {column} is {str(kind)!r}; allowed are {', '.join(COLUMN_TYPES)}, as in age=int"
                )

    def deciding(self) -> dict[str, Any]:
        """Return the options for the manifest: all of them decide what the shards hold."""
        values = dataclasses.asdict(self)
        # Datasets of earlier versions have no such options.
        return {
            name: value for name, value in values.items() if value or name not in ("source", "raw_tsv", "source_args")
        }

    @property
    def column_kinds(self) -> dict[str, ColumnKind]:
        """The declared kinds by column; UsageError if a value for missing ones is not of its kind."""
        kinds = {}
        for column, text in self.column_types.items():
            try:
                kinds[column] = ColumnKind.parse(text)
            except ValueError as error:
                raise UsageError(f"--column-types: {column}={text}: {error}") from None
        return kinds

    def reject_list_flags(self, what: str) -> None:
        """Raise UsageError if an option is set that only a list has; `what` is what the input is instead."""
        for name in ("path_column", "label_column", "split_column", "label_separator", "column_types", "raw_tsv"):
            if getattr(self, name):
                raise UsageError(f"--{_flag(name)} is for CSV and JSONL lists, and {what}. Omit the flag.")


def add_source_flags(parser: FlagParser) -> None:
    """Add the flags that `source_options` reads."""
    add = parser.add_argument
    add(
        "--source",
        metavar="NAME",
        help="read the input as folders, files, list, tar, idx, imagenet or the source of an installed package (default: by"
        " what it is)",
    )
    add(
        "--source-arg",
        type=flag_type("source argument", _parse_argument),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the source of an installed package, which `tpudata help NAME` shows; may be passed several times",
    )
    add("--labels", metavar="FILE", help="class names, a line each: fixes the classes and their order")
    parser.add_switch("--unlabelled", default=False, help="the images have no classes")
    add(
        "--path-column",
        metavar="NAME",
        help="column of a list with the paths (default: path, file, filename or image), or of a Parquet file with the images",
    )
    add(
        "--label-column",
        metavar="NAME",
        help="column of a list with the classes (default: label, class or their plurals)",
    )
    add("--split-column", metavar="NAME", help="column of a list with the splits (default: split, if there is one)")
    add("--label-separator", metavar="TEXT", help="between several classes in one cell of a CSV list, such as '|'")
    add(
        "--label-type",
        choices=LABEL_TYPES,
        help="labels of lists and WebDataset tars, and names of class folders: int if whole numbers are labels themselves, str"
        " if all are names (default: by the labels, a mixture of which is an error; folders have names)",
    )
    add(
        "--column-types",
        type=flag_type("column types", _parse_types),
        default={},
        metavar="NAME=TYPE[=VALUE],...",
        help="int, float, float32 or str for further columns of a list, in place of what their values look like; VALUE is"
        " stored for missing values",
    )
    parser.add_switch("--raw-tsv", default=False, help="quotes are ordinary characters in lists separated by tabs")


def source_options(flags: argparse.Namespace) -> SourceOptions:
    """Return the options that the flags of `add_source_flags` say; UsageError if they do not fit each other."""
    return SourceOptions(
        source=flags.source,
        labels_file=flags.labels,
        unlabelled=flags.unlabelled,
        path_column=flags.path_column,
        label_column=flags.label_column,
        split_column=flags.split_column,
        label_separator=flags.label_separator,
        label_type=flags.label_type,
        column_types=flags.column_types,
        raw_tsv=flags.raw_tsv,
        source_args=_arguments(flags.source_arg),
    )


def reject_split_flag(options: ConvertOptions, what: str) -> None:
    """Raise UsageError if --split deals out records whose split the input says; `what` is what says it."""
    if options.split:
        raise UsageError(f"--split: {what}. Omit the flag.")


def _arguments(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--source-arg {twice}: passed twice. Pass each argument once.")
    return dict(pairs)


def _parse_argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{text!r}: write it as NAME=VALUE")
    return name, value


def _flag(name: str) -> str:
    return "labels" if name == "labels_file" else name.replace("_", "-")


def _parse_types(text: str) -> dict[str, str]:
    types: dict[str, str] = {}
    for part in text.split(","):
        found = _TYPED_COLUMN.fullmatch(part.strip())
        name, kind = found.groups() if found else part.rpartition("=")[::2]
        if not name.strip() or name.strip() in types:
            raise UsageError(f"{part!r}: write each column once, as in age=int,score=float")
        types[name.strip()] = kind.strip()
    return types
