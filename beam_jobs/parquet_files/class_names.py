"""Metadata that Hugging Face's `datasets` writes about a file's columns, such as the names of classes."""

from __future__ import annotations

from typing import Any

from tpudata.json_values import parse_input_json

_METADATA = b"huggingface"


def describe_columns(schema: Any, *, with_lists: bool = False) -> dict[str, dict[str, Any]]:
    """Return the description of each column in the metadata of a schema, by name; empty if the metadata is missing or invalid.

    Args:
        schema: a schema of pyarrow.
        with_lists: whether to include columns that are described as `[description of the items]`, by the items' description.
    """
    try:
        columns = parse_input_json((schema.metadata or {}).get(_METADATA, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    if not isinstance(columns, dict):
        return {}
    if with_lists:
        # The metadata describes a list as `[description of the items]`.
        columns = {
            name: description[0] if isinstance(description, list) and len(description) == 1 else description
            for name, description in columns.items()
        }
    return {name: description for name, description in columns.items() if isinstance(description, dict)}


def find_class_names(description: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the class names in the description of a column, or of the items of a column of lists; None if it has none."""
    # The description of a list may be an object with the description of its items in `feature`.
    feature = description.get("feature", description)
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None
