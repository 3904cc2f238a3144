"""Flags that an append takes from the manifest of the dataset that it adds to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from beam_jobs.options import SplitShares
from beam_jobs.text_files.options import TextField
from beam_jobs.values.column_kinds import ColumnKind
from tpudata.checked_json import FLAG, INT64_MAX, NULL, TEXT, WHOLE, Entries, Items, Keys, Plain
from tpudata.errors import DatasetError, UsageError
from tpudata.format import open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.manifest.parts import RESTORE
from tpudata.storage import storage_for

# Flags with the name and value of the manifest's option. The number of shards is not inherited: there are fewer new inputs.
_SAME = (
    "label_offset",
    "seed",
    "shuffle",
    "unlabelled",
    "path_column",
    "label_column",
    "split_column",
    "label_separator",
    "label_type",
    "source",
    "column_types",
    "layout",
    "check",
    "resize_shorter",
    "quality",
    "jpeg_only",
    "form",
    "raw_tsv",
    "document_bytes",
    "sequence_length",
    "pack",
    "long_documents",
    "int64_lists",
    "eos",
    "replace_unknown",
)
# Other flags: the option, the flag, and a function from the option's value to the flag's.
_OTHERS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("compression", "compression", lambda value: value or "none"),
    ("shard_bytes", "shard_size", lambda value: value),
    ("labels_file", "labels", lambda value: value),
    ("replace_invalid", "invalid_utf8", lambda value: "replace" if value else "fail"),
    ("end_documents", "no_eos", lambda value: not value),
    ("source_args", "source_arg", lambda value: list(value.items())),
    ("fields", "field", lambda value: [TextField(name, *ColumnKind.parse(kind)) for name, kind in value.items()]),
)
_TEXT, _WHOLE = Plain((str, NULL)), Plain((int, NULL))
_SCHEMA = Keys(
    {},
    {
        "label_offset": WHOLE,
        **dict.fromkeys(("shard_bytes", "document_bytes"), Plain((int,), low=1)),
        **dict.fromkeys(("resize_shorter", "quality", "sequence_length"), _WHOLE),
        **dict.fromkeys(("shuffle", "unlabelled", "jpeg_only", "pack", "int64_lists"), FLAG),
        **dict.fromkeys(("replace_unknown", "replace_invalid", "end_documents"), FLAG),
        **dict.fromkeys(("layout", "check", "form", "long_documents"), TEXT),
        **dict.fromkeys(("path_column", "label_column", "split_column", "label_separator", "label_type"), _TEXT),
        **dict.fromkeys(("source", "eos", "compression", "labels_file"), _TEXT),
        **dict.fromkeys(("column_types", "fields", "source_args"), Entries(TEXT)),
        "seed": Plain((int,), low=-INT64_MAX),
        "split": Plain((dict, NULL)),
        "split_order": Items(TEXT),
    },
    is_open=True,
)


def inherited_flags(flags: argparse.Namespace) -> dict[str, Any]:
    """Return defaults of flags, by dest, from the manifest of the dataset in `--output`; none without a complete dataset.

    Args:
        flags: the flags that were passed.

    Raises:
        DatasetError: the manifest is damaged.
    """
    storage = storage_for(flags.output)
    path = storage.join(flags.output, MANIFEST_NAME)
    if storage.stat(path) is None:
        return {}
    options = open_dataset(flags.output).manifest.options
    try:
        _SCHEMA.check("options", options)
        found = {name: options[name] for name in _SAME if name in options}
        found |= {flag: value(options[name]) for name, flag, value in _OTHERS if name in options}
        if options.get("split") is not None:
            found["split"] = _split(options)
    except (ValueError, UsageError) as error:
        raise DatasetError(
            f"{path}: the options of the conversion are not as they were written: {error}. {RESTORE}"
        ) from None
    if isinstance(options.get("tokenizer"), Mapping):
        found["tokenizer"] = _tokenizer(flags.output, options["tokenizer"])
    for name in ("field", "source_arg"):
        if getattr(flags, name, None):
            found.pop(name, None)  # argparse would append passed ones to the default.
    return {name: value for name, value in found.items() if hasattr(flags, name)}


def _split(options: Mapping[str, Any]) -> SplitShares:
    shares: Mapping[str, str] = options["split"]
    Entries(TEXT).check("options.split", shares)
    if "split_order" in options and sorted(options["split_order"]) != sorted(shares):
        raise ValueError("options.split_order has other names than options.split")
    return SplitShares.parse(",".join(f"{name}={shares[name]}" for name in options.get("split_order", shares)))


def _tokenizer(output: str, identity: Mapping[str, Any]) -> str:
    """Return the tokenizer in the notation of --tokenizer, with its file next to the shards."""
    name = identity.get("name", "")
    return f"{name}:{storage_for(output).join(output, identity['file'])}" if identity.get("file") else str(name)
