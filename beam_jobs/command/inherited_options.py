"""Inheriting the options of an append from the manifest of the dataset."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tpudata.checked_json import TEXT, Items
from tpudata.console.option import Option
from tpudata.errors import DatasetError, UsageError
from tpudata.format import open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.manifest.parts import RESTORE
from tpudata.storage import storage_for


def inherit_options(flags: argparse.Namespace, options: Mapping[str, Option]) -> None:
    """Set the flags that were not passed to their values in the manifest of `--output`; do nothing without a manifest.

    Args:
        flags: flags from an OptionParser; changed in place.
        options: the parser's options.

    Raises:
        DatasetError: the manifest is damaged.
    """
    storage = storage_for(flags.output)
    path = storage.join(flags.output, MANIFEST_NAME)
    if storage.stat(path) is None:
        return
    entries = open_dataset(flags.output).manifest.options
    try:
        entries = {
            **entries,
            "split": _order_splits(entries),
            "tokenizer": _find_tokenizer(entries, flags.output),
            "chat_template": _find_chat_template(entries, flags.output),
        }
        for name, option in options.items():
            # Every entry is checked, including those of flags that were passed.
            stored_value = _read_flag_value(option, entries)
            if getattr(flags, name) is None:
                setattr(flags, name, stored_value)
    except (ValueError, UsageError) as error:
        raise DatasetError(
            f"{path}: the options of the conversion are not as they were written: {error}. {RESTORE}"
        ) from None


def _read_flag_value(option: Option, entries: Mapping[str, Any]) -> Any:
    """Return an option's entry in the manifest as its flag would be parsed; None if the manifest does not store the option."""
    if option.stored is None or option.stored.schema is None:
        return None
    name = option.stored.name or option.name
    # If None is the default, an entry of None means that the flag was not passed; otherwise it is checked like any value.
    if name not in entries or (entries[name] is None and option.default is None):
        return None
    option.stored.schema.check(f"options.{name}", entries[name])
    return option.to_flag(option.stored.read(entries[name]))


def _order_splits(entries: Mapping[str, Any]) -> Any:
    """Return the shares of splits in the order in which they were passed, `split_order`: the manifest's JSON sorts its keys.

    `split_order` is stored only if the two orders differ. Shares that are not an object are returned unchanged, for the option's
    schema to reject.

    Raises:
        ValueError: `split_order` is not a list of the names of the splits.
    """
    shares, order = entries.get("split"), entries.get("split_order")
    if not isinstance(shares, Mapping) or order is None:
        return shares
    Items(TEXT).check("options.split_order", order)
    if sorted(order) != sorted(shares):
        raise ValueError("options.split_order and options.split differ in their names")
    return {name: shares[name] for name in order}


def _find_chat_template(entries: Mapping[str, Any], output: str) -> Any:
    """Return the path of the chat template next to the shards; None without a template.

    An object without a file is returned unchanged, for the option's schema to reject.
    """
    entry = entries.get("chat_template")
    if isinstance(entry, Mapping) and entry.get("file"):
        return storage_for(output).join(output, entry["file"])
    return entry


def _find_tokenizer(entries: Mapping[str, Any], output: str) -> Any:
    """Return the tokenizer as --tokenizer takes it, with the path of its file next to the shards; None without a tokenizer."""
    identity = entries.get("tokenizer")
    if not isinstance(identity, Mapping):
        return None
    name = str(identity.get("name", ""))
    return f"{name}:{storage_for(output).join(output, identity['file'])}" if identity.get("file") else name
