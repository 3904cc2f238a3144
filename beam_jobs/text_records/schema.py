"""Schema of text records: the four layouts, and the features of each (beam_jobs.text_records.records)."""

from __future__ import annotations

from beam_jobs.text_files.options import INPUT_IDS, INPUTS, TARGETS, TEXT, TextField, TextOptions
from beam_jobs.values.column_kinds import INT, STR
from tpudata.format import Feature

LAYOUT_TEXT, LAYOUT_TOKENS, LAYOUT_SEQUENCES, LAYOUT_PACKED = "text", "tokens", "sequences", "packed"
LAYOUT_PACKED_PAIRS = "packed_pairs"
SEGMENT_IDS, POSITIONS, LOSS_WEIGHTS = "segment_ids", "positions", "loss_weights"


def text_layout(options: TextOptions) -> str:
    """Name of the feature layout."""
    if options.tokenizer is None:
        return LAYOUT_TEXT
    if len(options.row_lengths) == 2:
        return LAYOUT_PACKED_PAIRS
    if options.sequence_length is None:
        return LAYOUT_TOKENS
    return LAYOUT_PACKED if options.pack else LAYOUT_SEQUENCES


def text_features(options: TextOptions) -> tuple[Feature, ...]:
    """Return the schema of the records."""
    if len(options.row_lengths) == 2:
        sides = zip((INPUTS, TARGETS), options.row_lengths, strict=True)
        return tuple(_row(name, length, options) for side, length in sides for name in side_names(side))
    length = options.sequence_length
    if length is None:
        weights = (Feature(LOSS_WEIGHTS, "int64", "int64", (None,)),) if options.has_weights else ()
        return (*(_feature(field, options) for field in options.record_fields), *weights)
    names = [INPUT_IDS, *((SEGMENT_IDS, POSITIONS) if options.pack else ())]
    if options.has_weights:
        names.append(LOSS_WEIGHTS)
    return tuple(_row(name, length, options) for name in names)


def side_names(side: str) -> tuple[str, str, str]:
    """Return the names of the tokens, segments and positions of a side of packed pairs, as in SeqIO."""
    return side, f"{side}_{SEGMENT_IDS}", f"{side}_{POSITIONS}"


def _row(name: str, length: int, options: TextOptions) -> Feature:
    if options.int64_lists:
        return Feature(name, "int64", "int64", (length,))
    return Feature(name, "bytes", "int32", (length,), encoding="raw")


def _feature(field: TextField, options: TextOptions) -> Feature:
    if field.kind == TEXT and options.tokenizer is not None:
        return Feature(options.ids_name(field.name), "int64", "int64", (None,))
    if field.kind in (TEXT, STR):
        return Feature(field.name, "bytes", "string", encoding="utf8")
    return Feature(field.name, "int64", "int64") if field.kind == INT else Feature(field.name, "float", "float32")
