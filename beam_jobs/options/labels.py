"""Options of classes that images and text share."""

from __future__ import annotations

from beam_jobs.options.option import Group, Stored, Value, option
from beam_jobs.values.column_kinds import INT, STR
from tpudata.checked_json import TEXT

LABEL_TYPES = (INT, STR)


def labels_file_option(*, is_optional: bool = False) -> str | None:
    """Return the field of the option `--labels FILE`.

    Args:
        is_optional: whether a manifest without it has no entry.
    """
    return option(
        None,
        Group.LABELS,
        "class names, a line each: fixes the classes and their order",
        Value("FILE"),
        flag="--labels",
        stored=Stored(TEXT, is_optional=is_optional),
    )
