"""Schema of text records: the four layouts, and the features of each (beam_jobs.text_records.records)."""

from __future__ import annotations

from beam_jobs.options.labels import LABEL
from beam_jobs.text_files.options import INPUT_IDS, KEY, LIST_KINDS, TEXT, TextField, TextOptions
from beam_jobs.values.column_kinds import INT, STR
from tpudata.format import Feature

LAYOUT_TEXT, LAYOUT_TOKENS, LAYOUT_SEQUENCES, LAYOUT_PACKED = "text", "tokens", "sequences", "packed"
SEGMENT_IDS, POSITIONS = "segment_ids", "positions"


def text_layout(options: TextOptions) -> str:
    """Name of the feature layout."""
    if options.tokenizer is None:
        has_ids = any(field == TextField(INPUT_IDS, "ints") for field in options.fields)
        return LAYOUT_TOKENS if has_ids else LAYOUT_TEXT
    if options.sequence_length is None:
        return LAYOUT_TOKENS
    return LAYOUT_PACKED if options.pack else LAYOUT_SEQUENCES


def text_features(options: TextOptions, classes: int = 1, *, several_labels: bool = False) -> tuple[Feature, ...]:
    """Return the schema of the records.

    Args:
        options: fields and layout.
        classes: number of classes, if documents have any.
        several_labels: whether a document has any number of classes.
    """
    length = options.sequence_length
    if length is None:
        features = [_feature(field, options) for field in options.fields]
        if options.labels.are_stored and several_labels:
            features.append(Feature(LABEL, "int64", "int64", (None,)))
        elif options.labels.are_stored:
            features.append(Feature(LABEL, "int64", "int64", num_classes=classes))
        if options.keep_key:
            features.append(Feature(KEY, "bytes", "string", encoding="utf8"))
        return tuple(features)
    names = (INPUT_IDS, SEGMENT_IDS, POSITIONS) if options.pack else (INPUT_IDS,)
    if options.int64_lists:
        return tuple(Feature(name, "int64", "int64", (length,)) for name in names)
    return tuple(Feature(name, "bytes", "int32", (length,), encoding="raw") for name in names)


def _feature(field: TextField, options: TextOptions) -> Feature:
    if field.kind == TEXT and options.tokenizer is not None:
        return Feature(options.ids_name(field.name), "int64", "int64", (None,))
    shape = (None,) if field.kind in LIST_KINDS else ()
    kind = LIST_KINDS.get(field.kind, field.kind)
    if kind in (TEXT, STR):
        return Feature(field.name, "bytes", "string", shape, encoding="utf8")
    return (
        Feature(field.name, "int64", "int64", shape) if kind == INT else Feature(field.name, "float", "float32", shape)
    )
