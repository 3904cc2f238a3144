"""What is said of an input beyond where it is, checked once at the door."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

from beam_jobs.options import ConvertOptions
from tpudata.errors import UsageError
from tpudata.flags import FlagParser, flag_type

COLUMN_TYPES = ("int", "float", "str")


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """How an input is to be read.

    Attributes:
        labels_file: file of class names, a line each, that fixes the classes and their order.
        unlabelled: records have no classes.
        path_column: column of a list that holds the paths; None finds it by its name.
        label_column: column of a list that holds the classes; None finds it by its name.
        split_column: column of a list that holds the splits; None takes a column named "split" where there is one.
        label_separator: stands between several classes in one cell of a CSV list; None where a cell is one class.
        column_types: `"int"`, `"float"` or `"str"` by column, in place of what the values look like.

    Raises:
        UsageError: values that do not fit each other.
    """

    labels_file: str | None = None
    unlabelled: bool = False
    path_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    label_separator: str | None = None
    column_types: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("labels_file", "path_column", "label_column", "split_column", "label_separator"):
            if getattr(self, name) == "":
                raise UsageError(f"--{_flag(name)} is empty")
        for name in ("labels_file", "label_column", "label_separator"):
            if self.unlabelled and getattr(self, name) is not None:
                raise UsageError(f"--unlabelled and --{_flag(name)}: choose one")
        for column, kind in self.column_types.items():
            if kind not in COLUMN_TYPES:
                raise UsageError(
                    f"--column-types: {column} is {kind!r}; allowed are {', '.join(COLUMN_TYPES)}, as in age=int"
                )

    def refuse_list_flags(self, what: str) -> None:
        """Raises UsageError where something is said that only a list has; `what` is what the input is instead."""
        for name in ("path_column", "label_column", "split_column", "label_separator", "column_types"):
            if getattr(self, name):
                raise UsageError(f"--{_flag(name)} is for CSV and JSONL lists, and {what}. Leave the flag out.")


def add_source_flags(parser: FlagParser) -> None:
    """Adds the flags that `source_options` reads."""
    add = parser.add_argument
    add("--labels", metavar="FILE", help="class names, a line each: fixes the classes and their order")
    parser.add_switch("--unlabelled", default=False, help="the images have no classes")
    add(
        "--path-column", metavar="NAME", help="column of a list with the paths (default: path, file, filename or image)"
    )
    add(
        "--label-column",
        metavar="NAME",
        help="column of a list with the classes (default: label, class or their plurals)",
    )
    add("--split-column", metavar="NAME", help="column of a list with the splits (default: split, where there is one)")
    add("--label-separator", metavar="TEXT", help="between several classes in one cell of a CSV list, such as '|'")
    add(
        "--column-types",
        type=flag_type("column types", _parse_types),
        default={},
        metavar="NAME=TYPE,...",
        help="int, float or str for further columns of a list, in place of what their values look like",
    )


def source_options(flags: argparse.Namespace) -> SourceOptions:
    """The options that the flags of `add_source_flags` say; UsageError where they do not fit each other."""
    return SourceOptions(
        labels_file=flags.labels,
        unlabelled=flags.unlabelled,
        path_column=flags.path_column,
        label_column=flags.label_column,
        split_column=flags.split_column,
        label_separator=flags.label_separator,
        column_types=flags.column_types,
    )


def refuse_split_flag(options: ConvertOptions, what: str) -> None:
    """Raises UsageError where --split deals out records whose split the input says; `what` is what says it."""
    if options.split:
        raise UsageError(f"--split: {what}. Leave the flag out.")


def _flag(name: str) -> str:
    return "labels" if name == "labels_file" else name.replace("_", "-")


def _parse_types(text: str) -> dict[str, str]:
    types: dict[str, str] = {}
    for part in text.split(","):
        name, _, kind = part.rpartition("=")
        if not name.strip() or name.strip() in types:
            raise UsageError(f"{part!r}: write each column once, as in age=int,score=float")
        types[name.strip()] = kind.strip()
    return types
