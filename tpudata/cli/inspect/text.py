"""Text output of `tpudata inspect`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tpudata.console.tables import bytes_text, count_text, table, warning_texts

_SHOWN_CLASSES = 20


def format_description(description: dict[str, Any]) -> str:
    """Return a dataset's description, as `tpudata.cli.inspect.command.describe` returns it, as text for people."""
    compression = "" if description["compression"] is None else f", {description['compression']}"
    head = (
        f"{description['path']}: {count_text(description['records'], 'record')} in {bytes_text(description['bytes'])}"
        f" (layout {description['layout']}{compression}, format version {description['format_version']}, made by"
        f" {description['created_by']})"
    )
    source = description["source"]
    ignored = f", {count_text(source['ignored_files'], 'file')} ignored" if source["ignored_files"] else ""
    origin = (
        f"made from {source['input']}: {count_text(source['files'], 'input')}, {bytes_text(source['bytes'])}{ignored}"
    )
    if description["options"]:
        origin += f"\nwith options {json.dumps(description['options'], sort_keys=True)}"
    parts = [head, _format_splits(description["splits"]), _format_features(description["features"])]
    if description["annotations"]:
        parts.append(_format_annotations(description["annotations"], description["splits"]))
    if description["labels"] is not None:
        parts.append(_format_classes(description["labels"]))
    parts += [origin, _format_rejects(description)]
    if description["converted"]:
        parts.append(_format_reasons("re-encoded", description["converted"]))
    if description["counts"]:
        parts.append(_format_counts(description["counts"], description["real_token_share"]))
    if description["warnings"]:
        parts.append("\n".join(warning_texts(description["warnings"])))
    splits = description["splits"]
    parts += [_format_examples(name, split["examples"]) for name, split in splits.items() if split["examples"]]
    return "\n\n".join(parts)


def _format_splits(splits: dict[str, Any]) -> str:
    """Return a table of the splits: their descriptions by name, see `describe`."""
    rows = [["split", "records", "shards", "bytes", "smallest shard", "largest shard", "decoded"]]
    for name, split in splits.items():
        sizes = [shard["bytes"] for shard in split["shards"]]
        rows.append(
            [
                name,
                count_text(split["records"]),
                count_text(len(sizes)),
                bytes_text(split["bytes"]),
                bytes_text(min(sizes)) if sizes else "-",
                bytes_text(max(sizes)) if sizes else "-",
                bytes_text(split["decoded_bytes"]),
            ]
        )
    return table(rows, right=range(1, 7))


def _format_features(features: list[dict[str, Any]]) -> str:
    """Return a table of the features, which are entries of a manifest's JSON."""
    rows = [["feature", "stored as", "decoded to", "shape", ""]]
    for feature in features:
        shape = "x".join("?" if size is None else str(size) for size in feature["shape"]) or "scalar"
        note = ""
        if "num_classes" in feature:
            first, count = feature["label_offset"], feature["num_classes"]
            labels = f"label {first}" if count == 1 else f"labels {first} to {first + count - 1}"
            note = f"{count_text(count, 'class', 'classes')}, {labels}"
        stored_kind = feature["kind"] + (f" ({feature['encoding']})" if "encoding" in feature else "")
        rows.append([feature["name"], stored_kind, feature["dtype"], shape, note])
    return table(rows)


def _format_annotations(kinds: dict[str, list[str]], splits: dict[str, Any]) -> str:
    """Return a table of the annotations, and a line with their counts for each split that has any.

    Args:
        kinds: kinds of annotations, by the name of their feature.
        splits: descriptions of the splits, by name, see `describe`.
    """
    rows = [[f"  {name}", ", ".join(kinds_of_feature)] for name, kinds_of_feature in kinds.items()]
    lines = ["annotations:", table(rows)]
    for name, split in splits.items():
        if "annotations" in split:
            lines.append(f"  {name}, {_format_split_counts(split['annotations'], split['records'])}")
    return "\n".join(lines)


def _format_split_counts(counts: dict[str, Any], record_count: int) -> str:
    """Return a line with the counts of annotations in a split.

    Args:
        counts: the counts, see `count_annotations`.
        record_count: number of records of the split.
    """
    read_count = counts["records"]
    scope = "all" if read_count == record_count else f"first {count_text(read_count)} of"
    parts = []
    if "objects" in counts:
        per_record = _format_frequency(counts["objects"], counts["most_objects"], read_count)
        without_objects = f"{count_text(counts['without_objects'])} without objects"
        parts.append(f"{count_text(counts['objects'], 'object')}, {per_record}; {without_objects}")
        if counts["classes"]:
            classes = [f"{name} {count_text(count)}" for name, count in counts["classes"].items()]
            parts.append(f"classes: {_join_classes(classes)}")
    if "captions" in counts:
        per_record = _format_frequency(counts["captions"], counts["most_captions"], read_count)
        parts.append(f"{count_text(counts['captions'], 'caption')}, {per_record}")
    return f"{scope} {count_text(record_count, 'record')}: {'; '.join(parts)}"


def _format_frequency(total: int, most: int, record_count: int) -> str:
    """Return the mean number of annotations in a record, and the largest, such as `2.5 a record, at most 7`."""
    return f"{total / max(record_count, 1):.1f} a record, at most {count_text(most)}"


def _format_classes(labels: Sequence[str]) -> str:
    return f"{count_text(len(labels), 'class', 'classes')}: {_join_classes(labels)}"


def _join_classes(classes: Sequence[str]) -> str:
    """Return the first 20 classes in one line, and the number of further classes."""
    more = f" and {count_text(len(classes) - _SHOWN_CLASSES)} more" if len(classes) > _SHOWN_CLASSES else ""
    return f"{', '.join(classes[:_SHOWN_CLASSES])}{more}"


def _format_rejects(description: dict[str, Any]) -> str:
    """Return a table of rejected inputs by reason, and the paths of the files that list them."""
    if not description["rejected"]:
        return "rejected: none"
    return "\n".join(
        [
            _format_reasons("rejected", description["rejected"]),
            *(f"listed in {path}" for path in description["rejects"]),
        ]
    )


def _format_reasons(heading: str, counts: dict[str, int]) -> str:
    """Return a table of counts by reason; `heading` stands above the counts."""
    rows = [[heading, "reason"], *([count_text(count), reason] for reason, count in sorted(counts.items()))]
    return table(rows, right=[0])


def _format_counts(counts: dict[str, int], real_token_share: float | None) -> str:
    """Return a table with the counts of documents and tokens, and the share of positions that are not padding, if it is known."""
    rows = [[name, count_text(count)] for name, count in counts.items()]
    if real_token_share is not None:
        rows.append(["real tokens", f"{real_token_share:.2%}"])
    return table(rows, right=[1])


def _format_examples(split: str, examples: list[dict[str, Any]]) -> str:
    """Return the values of the first records of a split, a table for each record.

    Args:
        split: name of the split.
        examples: for each record, its values by the name of their feature.
    """
    lines = [f"first records of {split}:"]
    for index, example in enumerate(examples):
        rows = [[f"    {key}", json.dumps(value, ensure_ascii=False)] for key, value in example.items()]
        lines += [f"  record {index}", table(rows)]
    return "\n".join(lines)
