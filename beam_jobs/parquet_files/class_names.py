"""Metadata that Hugging Face's `datasets` writes about a file's columns, such as the names of classes."""

from __future__ import annotations

from typing import Any

from tpudata.json_values import parse_input_json

_METADATA = b"huggingface"


def describe_columns(schema: Any, *, with_lists: bool = False) -> dict[str, dict[str, Any]]:
    """Return the description of each column in the metadata of a schema; nothing without them.

    Args:
        schema: a schema of pyarrow.
        with_lists: whether to include columns whose description is a list of that of their items, which stands for them.
    """
    try:
        columns = parse_input_json((schema.metadata or {}).get(_METADATA, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    if not isinstance(columns, dict):
        return {}
    if with_lists:
        columns = {
            name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in columns.items()
        }
    return {name: value for name, value in columns.items() if isinstance(value, dict)}


def class_names(description: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the class names in the description of a column, or None; of a column of lists, those of their items."""
    feature = description.get("feature", description)
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None
