"""Schema of text records: the layouts of beam_jobs.text_records.records, and the features of each."""

from __future__ import annotations

from collections.abc import Iterator

from beam_jobs.options.labels import LABEL
from beam_jobs.text_files.fields import TEXT, TextField
from beam_jobs.text_files.options import INPUT_IDS, INPUTS, KEY, TARGETS, TextOptions
from beam_jobs.values.column_kinds import INT, LIST_KINDS, STR, get_item_kind
from tpudata.format import Feature

LAYOUT_TEXT, LAYOUT_TOKENS, LAYOUT_SEQUENCES, LAYOUT_PACKED = "text", "tokens", "sequences", "packed"
LAYOUT_PACKED_PAIRS = "packed_pairs"
SEGMENT_IDS, POSITIONS, LOSS_WEIGHTS = "segment_ids", "positions", "loss_weights"


def choose_text_layout(options: TextOptions) -> str:
    """Return the name of the layout that the options choose."""
    if options.tokenizer is None:
        # Ids of another program's tokenizer make the same records as ours.
        has_ids = any(field == TextField(INPUT_IDS, "ints") for field in options.fields)
        return LAYOUT_TOKENS if has_ids else LAYOUT_TEXT
    if len(options.row_lengths) == 2:
        return LAYOUT_PACKED_PAIRS
    if options.sequence_length is None:
        return LAYOUT_TOKENS
    return LAYOUT_PACKED if options.pack else LAYOUT_SEQUENCES


def make_text_features(
    options: TextOptions, num_classes: int = 1, *, several_labels: bool = False, extra: tuple[Feature, ...] = ()
) -> tuple[Feature, ...]:
    """Return the schema of the records.

    Args:
        options: fields and layout.
        num_classes: number of classes, if documents have any.
        several_labels: whether a document may have several classes, or none.
        extra: extra features, which follow the others if a record is a document; sequences have none.
    """
    # Rows of pairs have one length for the inputs and one for the targets.
    if len(options.row_lengths) == 2:
        sides = zip((INPUTS, TARGETS), options.row_lengths, strict=True)
        return tuple(
            _make_row_feature(name, length, options) for side, length in sides for name in name_side_features(side)
        )
    length = options.sequence_length
    if length is None:
        return (*_list_document_features(options, num_classes, several_labels), *extra)
    names = [INPUT_IDS, *((SEGMENT_IDS, POSITIONS) if options.pack else ())]
    if options.has_weights:
        names.append(LOSS_WEIGHTS)
    return tuple(_make_row_feature(name, length, options) for name in names)


def name_side_features(side: str) -> tuple[str, str, str]:
    """Return the names of the tokens, segments and positions of a side of packed pairs, as in SeqIO."""
    return side, f"{side}_{SEGMENT_IDS}", f"{side}_{POSITIONS}"


def _list_document_features(options: TextOptions, num_classes: int, several_labels: bool) -> Iterator[Feature]:
    """Yield the features of records with one document each."""
    for field in options.record_fields:
        yield _make_feature(field, options)
    if options.has_weights:
        yield Feature(LOSS_WEIGHTS, "int64", "int64", (None,))
    if options.labels.has_classes and several_labels:
        yield Feature(LABEL, "int64", "int64", (None,))
    elif options.labels.has_classes:
        yield Feature(LABEL, "int64", "int64", num_classes=num_classes)
    if options.keep_key:
        yield Feature(KEY, "bytes", "string", encoding="utf8")


def _make_row_feature(name: str, length: int, options: TextOptions) -> Feature:
    """Return a feature with one integer for each of the `length` tokens of a row."""
    if options.int64_lists:
        return Feature(name, "int64", "int64", (length,))
    return Feature(name, "bytes", "int32", (length,), encoding="raw")


def _make_feature(field: TextField, options: TextOptions) -> Feature:
    """Return the feature that stores a field."""
    if field.kind == TEXT and options.tokenizer is not None:
        return Feature(options.name_ids_feature(field.name), "int64", "int64", (None,))
    shape = (None,) if field.kind in LIST_KINDS else ()
    item_kind = get_item_kind(field.kind)
    if item_kind in (TEXT, STR):
        return Feature(field.name, "bytes", "string", shape, encoding="utf8")
    if item_kind == INT:
        return Feature(field.name, "int64", "int64", shape)
    return Feature(field.name, "float", "float32", shape)
