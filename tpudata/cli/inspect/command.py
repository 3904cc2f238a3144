"""`tpudata inspect DIR`: splits, shards, features, sizes, rejects and a few records of a dataset."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

from tpudata.cli.inspect.annotations import count_annotations, find_annotation_kinds
from tpudata.cli.inspect.text import format_description
from tpudata.console.flags import FlagParser, flag_type
from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, Feature, Shard, Split, index_name, open_dataset
from tpudata.format.layout import INDEX_FOLDER
from tpudata.format.reject_lines import list_reject_files
from tpudata.format.shards.stored_shards import find_changed_shard_error
from tpudata.storage import storage_for

# Number of values shown of a long list or of long bytes, and of characters shown of a long text.
_SHOWN_VALUES, _SHOWN_CHARACTERS = 8, 60


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code."""
    parser = new_parser()
    flags = parser.parse(argv)
    if not flags.folder:
        parser.error("DIR is empty; name the dataset's folder")
    description = describe(open_dataset(flags.folder), flags.records)
    if flags.json:
        json.dump(description, sys.stdout, indent=1)
        print()
    else:
        print(format_description(description))
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata inspect",
        "Shows what is in a dataset: splits, shards, features, sizes, rejects, records.",
        topics=("on_disk",),
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    parser.add_argument(
        "--records",
        type=flag_type("count", _parse_count),
        default=2,
        metavar="N",
        help="number of records to show from each split (default: %(default)s)",
    )
    return parser


def describe(dataset: Dataset, record_count: int) -> dict[str, Any]:
    """Describe a dataset as the JSON object that `--json` prints.

    Args:
        dataset: the dataset.
        record_count: number of records to show from each split.

    Returns:
        `path`, `layout`, `compression`, `format_version`, `created_by`, `records`, `bytes`, `splits` (per name: `records`,
        `bytes`, `decoded_bytes`, `shards`, `examples`, and `annotations` if it has any, see `count_annotations`), `features`,
        `annotations` (kinds by feature), `labels` (class names or null), `rejected` (counts by reason), `rejects` (paths of the
        files that list rejected inputs), `converted` (counts of re-encoded inputs by reason), `counts` (of documents and tokens,
        if the dataset was made from text), `warnings` (lines about the input, by kind), `real_token_share` (of the token
        positions in sequences, or null), `options` and `source`. Sizes are in bytes.

    Raises:
        DatasetError: a shard or its index is missing, or a shard differs from the manifest and the quarantine.
        CorruptionError: one of the records shown or counted is damaged.
    """
    manifest = dataset.manifest
    _check_shards(dataset)
    _check_indexes(dataset)
    return {
        "path": dataset.path,
        "layout": manifest.layout,
        "compression": manifest.compression,
        "format_version": manifest.format_version,
        "created_by": manifest.created_by,
        "records": manifest.records,
        "bytes": sum(split.bytes for split in manifest.splits.values()),
        "splits": {
            name: _describe_split(dataset, name, split, record_count) for name, split in manifest.splits.items()
        },
        "features": [feature.to_json() for feature in manifest.features],
        "annotations": find_annotation_kinds(manifest.features),
        "labels": dataset.labels(),
        "rejected": dict(manifest.rejected),
        "rejects": list_reject_files(dataset.path),
        "converted": dict(manifest.converted),
        "counts": dict(manifest.counts),
        "warnings": dict(manifest.warnings),
        "real_token_share": manifest.real_token_share,
        "options": dict(manifest.options),
        "source": {
            "input": manifest.source.input,
            "files": manifest.source.files,
            "bytes": manifest.source.bytes,
            "fingerprint": manifest.source.fingerprint,
            "ignored_files": manifest.source.ignored_files,
        },
    }


def _parse_count(text: str) -> int:
    """Parse an integer of 0 or more; UsageError for other text."""
    if not text.isdecimal():
        raise UsageError(f"{text!r} is not a whole number of 0 or more")
    try:
        count = int(text)
    except ValueError:
        count = sys.maxsize  # Python converts no more than 4,300 digits.
    # itertools.islice takes no larger number, and no dataset has as many records.
    return min(count, sys.maxsize)


def _check_shards(dataset: Dataset) -> None:
    """Raise DatasetError if a shard is missing, or differs from the manifest and the quarantine; no shard is read."""
    for split in dataset.manifest.splits:
        error = find_changed_shard_error(dataset, split)
        if error is not None:
            raise error


def _check_indexes(dataset: Dataset) -> None:
    """Raise DatasetError if the index of a shard is missing; no index is read."""
    storage = storage_for(dataset.path)
    folder = storage.join(dataset.path, INDEX_FOLDER)
    folder_entry = storage.stat(folder)
    paths: set[str] = set()
    if folder_entry is not None and folder_entry.is_folder:
        paths = {entry.path for entry in storage.list(folder)}
    for split in dataset.manifest.splits.values():
        for shard in split.shards:
            path = storage.join(dataset.path, index_name(shard.name))
            if path not in paths:
                raise DatasetError(
                    f"{path} is missing, the index of a shard. Copy the folder {INDEX_FOLDER} again from where it is"
                    " whole, or convert again."
                )


def _describe_split(dataset: Dataset, name: str, split: Split, record_count: int) -> dict[str, Any]:
    """Return the entry of a split in the description, with the values of its first `record_count` records."""
    examples = itertools.islice(dataset.examples(name), record_count)
    features = {feature.name: feature for feature in dataset.manifest.features}
    counts = count_annotations(dataset, name)
    return {
        "records": split.records,
        "bytes": split.bytes,
        "decoded_bytes": split.decoded_bytes,
        "shards": [_describe_shard(shard) for shard in split.shards],
        "examples": [
            {key: _shorten_value(values, features.get(key)) for key, values in example.items()} for example in examples
        ],
        **({} if counts is None else {"annotations": counts}),
    }


def _describe_shard(shard: Shard) -> dict[str, Any]:
    return {"name": shard.name, "records": shard.records, "bytes": shard.bytes, "crc32c": f"{shard.crc32c:08x}"}


def _shorten_value(values: Sequence[Any], feature: Feature | None) -> Any:
    """Return the values of one feature of one record for JSON, abbreviated.

    A single value is returned without its list; a list of more than 8 values becomes its length and its first 8 values.
    """
    # Bytes of an unknown feature may be text.
    is_text = feature is None or feature.encoding in (None, "utf8")
    items = [_shorten_item(value, is_text=is_text) for value in values[:_SHOWN_VALUES]]
    if len(values) > _SHOWN_VALUES:
        return {"values": len(values), "first": items}
    return items[0] if len(items) == 1 else items


def _shorten_item(value: bytes | int | float, *, is_text: bool) -> Any:
    """Return a value for JSON: a number, a string, or the length and the beginning of a long string or other bytes."""
    if not isinstance(value, bytes):
        return value
    if is_text:
        with contextlib.suppress(UnicodeDecodeError):
            text = value.decode()
            if len(text) <= _SHOWN_CHARACTERS:
                return text
            return {"characters": len(text), "first": text[:_SHOWN_CHARACTERS]}
    return {"bytes": len(value), "first": value[:_SHOWN_VALUES].hex(" ")}
