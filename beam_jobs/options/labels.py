"""Options of classes: those that images and text share, and those of text."""

from __future__ import annotations

import dataclasses

from beam_jobs.options.groups import FlagGroup
from beam_jobs.values.column_kinds import INT, STR
from tpudata.checked_json import TEXT
from tpudata.console.option import Stored, Value, check_options, option
from tpudata.errors import UsageError

LABEL_TYPES = (INT, STR)
FOLDER = "folder"
# Name of the feature with the class; the layouts of text have no other feature of this name.
LABEL = "label"


def labels_file_option(*, is_optional: bool = False) -> str | None:
    """Return the field of the option `--labels FILE`; annotated, like `option`, with the type of its value.

    Args:
        is_optional: whether the manifest omits the entry if the option is not passed.
    """
    return option(
        None,
        FlagGroup.LABELS,
        "class names, a line each: fixes the classes and their order",
        Value("FILE"),
        flag="--labels",
        stored=Stored(TEXT, is_optional=is_optional, is_path=True),
    )


@dataclasses.dataclass(frozen=True)
class TextLabelOptions:
    """Options of the classes of documents. There are none unless `label_field`, `label_from` or `are_from_source` is set.

    `are_from_source` is not a flag: it is True if the source of an installed package gives the classes.

    Raises:
        UsageError: a value is empty, or two do not fit each other.
    """

    label_field: str | None = option(
        None,
        FlagGroup.LABELS,
        "field of rows with the class of a document, which is stored as label: its name, or a whole number, which is the"
        " label itself (default: no classes)",
        Value("NAME"),
        stored=Stored(TEXT, is_optional=True),
    )
    label_from: str | None = option(
        None,
        FlagGroup.LABELS,
        "folder: with --form files, the class of a document is the folder that its file lies in",
        choices=(FOLDER,),
        stored=Stored(TEXT, is_optional=True),
    )
    label_separator: str | None = option(
        None,
        FlagGroup.LABELS,
        "text between several classes in one value of --label-field, such as '|' (default: a value is one class, or a"
        " list of classes in JSON or Parquet)",
        Value("TEXT"),
        stored=Stored(TEXT, is_optional=True),
    )
    labels_file: str | None = labels_file_option(is_optional=True)
    label_type: str | None = option(
        None,
        FlagGroup.LABELS,
        "int if whole numbers are labels themselves, str if all are names (default: by the first document; folders have"
        " names)",
        choices=LABEL_TYPES,
        stored=Stored(TEXT, is_optional=True),
    )
    are_from_source: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("label_field", "label_separator", "labels_file"):
            if getattr(self, name) == "":
                raise UsageError(f"--{_name_flag(name)} is empty. Pass a value, or omit the flag")
        if self.label_field is not None and self.label_from is not None:
            raise UsageError("--label-field and --label-from: choose one")
        for name in ("label_separator", "labels_file", "label_type"):
            if getattr(self, name) is not None and not self.has_classes:
                raise UsageError(
                    f"--{_name_flag(name)} requires --label-field or --label-from, which say where classes are"
                )
        if self.label_separator is not None and self.label_field is None:
            raise UsageError(
                "--label-separator is for --label-field, whose values may be several classes. Omit the flag"
            )

    @property
    def has_classes(self) -> bool:
        """Whether documents have classes."""
        return self.label_field is not None or self.label_from is not None or self.are_from_source


def _name_flag(name: str) -> str:
    return "labels" if name == "labels_file" else name.replace("_", "-")
