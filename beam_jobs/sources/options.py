"""Options of an input besides its path, checked when they are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from beam_jobs.options import ConvertOptions
from beam_jobs.options.groups import FlagGroup
from beam_jobs.options.labels import LABEL_TYPES, labels_file_option
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, LIST_KINDS, STR, ColumnKind
from tpudata.checked_json import FLAG, TEXT, Entries
from tpudata.console.option import Stored, Value, check_options, list_options, option
from tpudata.errors import UsageError

COLUMN_TYPES = (INT, FLOAT, FLOAT32, STR)
# Types of columns of lists, for Parquet files and JSON in tars; values in CSV and JSONL lists show whether they are lists.
_LIST_TYPES = tuple(LIST_KINDS)
# Sources of this package; beam_jobs/sources/source_table.py has the functions that open them.
SOURCE_NAMES = ("folders", "files", "list", "tar", "zip", "parquet", "idx", "arrays", "imagenet")
# Treatment of pictures without annotation.
FAIL_UNANNOTATED, EMPTY_UNANNOTATED, SKIP_UNANNOTATED = "fail", "empty", "skip"
# NAME=TYPE or NAME=TYPE=VALUE; a name may contain equals signs.
_TYPED_COLUMN = re.compile(rf"(.+?)=((?:{'|'.join((*COLUMN_TYPES, *LIST_KINDS))})(?:=.*)?)", re.DOTALL)


def _join_arguments(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the values of --source-arg by name; UsageError if a name is passed twice."""
    names = [name for name, _ in pairs]
    repeated_name = next((name for name in names if names.count(name) > 1), None)
    if repeated_name is not None:
        raise UsageError(f"--source-arg {repeated_name}: passed twice. Pass each argument once.")
    return dict(pairs)


def _parse_argument(text: str) -> tuple[str, str]:
    """Split NAME=VALUE; UsageError without name or equals sign. The value may be empty."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{text!r}: write it as NAME=VALUE")
    return name, value


def _parse_types(text: str) -> dict[str, str]:
    """Parse a string such as `age=int,score=float` into types by column; UsageError if a column's name is empty or repeated."""
    types: dict[str, str] = {}
    for part in text.split(","):
        match = _TYPED_COLUMN.fullmatch(part.strip())
        if match:
            name, kind = match.groups()
        else:
            # The type is unknown, which `SourceOptions` rejects.
            name, _, kind = part.rpartition("=")
        if not name.strip() or name.strip() in types:
            raise UsageError(f"{part!r}: write each column once, as in age=int,score=float")
        types[name.strip()] = kind.strip()
    return types


def _make_source_option(help: str) -> str | None:
    """Return the default of the field `source`, which declares the flag --source."""
    return option(None, FlagGroup.INPUT, help, Value("NAME"), stored=Stored(TEXT, is_optional=True))


def _make_source_args_option() -> Mapping[str, str]:
    """Return the default of the field `source_args`, which declares the flag --source-arg."""
    return option(
        {},
        FlagGroup.INPUT,
        "an argument of the source of an installed package, which `tpudata help NAME` shows; may be passed several times",
        Value("NAME=VALUE", _parse_argument),
        flag="--source-arg",
        collect=_join_arguments,
        # The manifest stores an object of the arguments, and `_join_arguments` takes pairs.
        stored=Stored(Entries(TEXT), read=lambda arguments: list(arguments.items()), is_optional=True),
    )


def _check_source_args(options: SourceOptions | TextSourceOptions) -> None:
    """Raise UsageError if there are arguments for a source, but no source is named."""
    if options.source_args and options.source is None:
        raise UsageError("--source-arg: the source that takes it is not named. Pass --source=NAME, too.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSourceOptions:
    """The source of documents from an installed package, if any.

    Raises:
        UsageError: arguments without a source.
    """

    source: str | None = _make_source_option(
        "read documents by the source of an installed package (default: files of text)"
    )
    source_args: Mapping[str, str] = _make_source_args_option()

    def __post_init__(self) -> None:
        check_options(self)
        _check_source_args(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options that decide how an input of images is read.

    Raises:
        UsageError: values that do not fit each other.
    """

    source: str | None = _make_source_option(
        f"read the input as {', '.join(SOURCE_NAMES)} or the source of an installed package (default: detected)"
    )
    source_args: Mapping[str, str] = _make_source_args_option()
    path_column: str | None = option(
        None,
        FlagGroup.INPUT,
        "column of a list with the paths (default: path, file, filename or image), or of a Parquet file with the images",
        Value("NAME"),
        stored=Stored(TEXT),
    )
    split_column: str | None = option(
        None,
        FlagGroup.INPUT,
        "column of a list with the splits (default: split, if there is one)",
        Value("NAME"),
        stored=Stored(TEXT),
    )
    column_types: Mapping[str, str] = option(
        {},
        FlagGroup.INPUT,
        "int, float, float32 or str for extra columns of a list, of a WebDataset's JSON or of --label-from, instead of the type"
        " that their values suggest; VALUE is stored for missing values; columns of Parquet files are stored only if they are named"
        " here; these and columns of JSON may also be ints, floats or strings",
        Value("NAME=TYPE[=VALUE],...", _parse_types),
        stored=Stored(Entries(TEXT)),
    )
    annotations: str | None = option(
        None,
        FlagGroup.LABELS,
        "annotations of the pictures in SRC: a file or a folder of COCO, Pascal VOC, YOLO, Open Images, CelebA, captions, label"
        " maps and other forms, recognized by content",
        Value("FILE|DIR"),
        stored=Stored(TEXT, is_optional=True, is_path=True),
    )
    masks: str | None = option(
        None,
        FlagGroup.LABELS,
        "label maps of the pictures in SRC: a folder of PNGs with their names",
        Value("DIR"),
        stored=Stored(TEXT, is_optional=True, is_path=True),
    )
    targets: str | None = option(
        None,
        FlagGroup.LABELS,
        "second pictures of those in SRC, which make pairs: a folder of pictures with their names",
        Value("DIR"),
        stored=Stored(TEXT, is_optional=True, is_path=True),
    )
    unannotated: str | None = option(
        None,
        FlagGroup.LABELS,
        "pictures without annotation: fail makes them bad records, empty stores them without objects, skip ignores them"
        " (default: as with fail)",
        choices=(FAIL_UNANNOTATED, EMPTY_UNANNOTATED, SKIP_UNANNOTATED),
        stored=Stored(TEXT, is_optional=True),
    )
    raw_tsv: bool = option(
        False,
        FlagGroup.INPUT,
        "quotes are ordinary characters in lists separated by tabs",
        stored=Stored(FLAG, is_optional=True),
    )
    labels_file: str | None = labels_file_option()
    label_from: str | None = option(
        None,
        FlagGroup.LABELS,
        "regular expression that is searched for in the path of each picture of a folder, a pattern, a zip or a tar: its first"
        " group without a name, or the group called label, is the class, and each other named group a column",
        Value("REGEX"),
        stored=Stored(TEXT, is_optional=True),
    )
    unlabelled: bool = option(False, FlagGroup.LABELS, "the images have no classes", stored=Stored(FLAG))
    label_column: str | None = option(
        None,
        FlagGroup.LABELS,
        "column of a list with the classes (default: label, class or their plurals)",
        Value("NAME"),
        stored=Stored(TEXT),
    )
    label_separator: str | None = option(
        None,
        FlagGroup.LABELS,
        "text between several classes in one cell of a CSV list, such as '|' (default: a cell is one class)",
        Value("TEXT"),
        stored=Stored(TEXT),
    )
    label_type: str | None = option(
        None,
        FlagGroup.LABELS,
        "labels of lists, WebDataset tars and --label-from, and names of class folders: int if whole numbers are labels"
        " themselves, str if all are names (default: by the labels, a mixture of which is an error; folders have names)",
        choices=LABEL_TYPES,
        stored=Stored(TEXT),
    )

    def __post_init__(self) -> None:
        """Raise UsageError if a value is invalid, or options exclude each other."""
        check_options(self)
        for name in ("labels_file", "path_column", "label_column", "split_column", "label_separator"):
            if getattr(self, name) == "":
                raise UsageError(f"{_name_flag(name)} is empty. Pass a value, or omit the flag")
        _check_source_args(self)
        for name in ("labels_file", "label_column", "label_separator", "label_type"):
            if self.unlabelled and getattr(self, name) is not None:
                raise UsageError(f"--unlabelled and {_name_flag(name)}: choose one")
        if self.label_from is not None:
            _check_pattern(self.label_from)
            for name in ("unlabelled", "label_column", "label_separator", "annotations", "masks", "targets"):
                if getattr(self, name):
                    raise UsageError(f"--label-from and {_name_flag(name)}: choose one")
        annotation_flags = [
            _name_flag(name) for name in ("annotations", "masks", "targets") if getattr(self, name) is not None
        ]
        if len(annotation_flags) > 1:
            raise UsageError(f"{' and '.join(annotation_flags)}: choose one")
        if self.unannotated is not None and not self.is_annotated:
            raise UsageError("--unannotated requires --annotations, --masks or --targets. Pass one, or omit the flag")
        for name in ("source", "unlabelled", "label_column", "label_type"):
            if self.is_annotated and getattr(self, name):
                raise UsageError(
                    f"{annotation_flags[0]} and {_name_flag(name)}: pictures get their labels from {annotation_flags[0]}. Omit"
                    " the latter."
                )
        for column, column_kind in self.column_kinds.items():
            # A missing list is stored as an empty list, so a column of lists takes no substitute.
            is_list = column_kind.kind in _LIST_TYPES
            is_allowed = column_kind.missing is None if is_list else column_kind.kind in COLUMN_TYPES
            if not is_allowed:
                raise UsageError(
                    f"--column-types: {column} is {str(column_kind)!r}; allowed are {', '.join(COLUMN_TYPES)}, as in age=int"
                )

    @property
    def is_annotated(self) -> bool:
        """Whether pictures have annotations."""
        return any(path is not None for path in (self.annotations, self.masks, self.targets))

    @property
    def folders_are_classes(self) -> bool:
        """Whether names of folders are classes, unless the input has other classes."""
        return not self.unlabelled and self.label_from is None

    @property
    def column_kinds(self) -> dict[str, ColumnKind]:
        """The declared kinds by column; UsageError if a column's substitute for missing values is not of its kind."""
        kinds = {}
        for column, text in self.column_types.items():
            try:
                kinds[column] = ColumnKind.parse(text)
            except ValueError as error:
                raise UsageError(f"--column-types: {column}={text}: {error}") from None
        return kinds

    def reject_list_types(self, reason: str) -> None:
        """Raise UsageError if a column is declared to have lists; `reason` is a clause on why it cannot."""
        column = next(
            (name for name, column_kind in self.column_kinds.items() if column_kind.kind in _LIST_TYPES), None
        )
        if column is not None:
            raise UsageError(
                f"--column-types: {column} is {self.column_types[column]!r}, which is for Parquet files, and {reason}. Name one of"
                f" {', '.join(COLUMN_TYPES)}, or omit the column."
            )

    def reject_list_flags(self, reason: str, *, has_columns: bool = False) -> None:
        """Raise UsageError if an option is set that is for lists only.

        Args:
            reason: clause that describes the input, for the message.
            has_columns: whether the input has extra columns, as lists do.
        """
        names = ["path_column", "label_column", "split_column", "label_separator", "column_types", "raw_tsv"]
        # Named groups of --label-from are also columns.
        if has_columns or self.label_from is not None:
            names.remove("column_types")
        for name in names:
            if getattr(self, name):
                raise UsageError(f"{_name_flag(name)} is for CSV and JSONL lists, and {reason}. Omit the flag.")


def reject_split_flag(options: ConvertOptions, reason: str) -> None:
    """Raise UsageError if --split is passed for an input that has splits already; `reason` is a clause that says so."""
    if options.split:
        raise UsageError(f"--split: {reason}. Omit the flag.")


def _check_pattern(text: str) -> None:
    """Raise UsageError if the value of --label-from is not a regular expression with a group."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"--label-from {text}: not a regular expression: {error}. Correct it.") from None
    if not pattern.groups:
        raise UsageError(
            f"--label-from {text}: no group (expected the class in parentheses, as in '(\\w+)\\.\\d+\\.jpg'). Add one."
        )


def _name_flag(name: str) -> str:
    """Return the flag of an option, given the name of its field."""
    return list_options(SourceOptions)[name].flag
