"""The options of the conversions as keywords of their functions, written out for type checkers.

Each but `pipeline`, `runner`, `beam_options` and `progress` is an option of the command, described in the field of the command's
options (tpudata/console/option.py). Passing None is the same as omitting the keyword. If a flag takes several items in one string,
a keyword takes the string, or a mapping or sequence of the items.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions


class ConversionKeywords(TypedDict, total=False):
    """Options of every conversion.

    Attributes:
        pipeline: a Beam pipeline whose runner and options are used, instead of `runner` and `beam_options`. The conversion is a
            separate pipeline; this one gets no steps and is not run.
        runner: name of Beam's runner, such as `"PrismRunner"`; by default the local one, in this process.
        beam_options: Beam's `PipelineOptions`, a dict of its options, or a list of its flags.
        progress: whether a bar on standard error shows the progress.
    """

    pipeline: Pipeline | None
    runner: str | None
    beam_options: PipelineOptions | Mapping[str, Any] | Sequence[str] | None
    progress: bool
    split: str | Mapping[str, Any] | None
    shard_bytes: int | str | None
    num_shards: int | None
    shards_multiple_of: int | None
    on_bad_record: str | None
    max_bad_records: int | str | None
    shuffle: bool | None
    seed: int | None
    compression: str | None
    dali_index: bool | None
    resume: bool | None
    overwrite: bool | None
    workers: int | None
    read_threads: int | None
    retry_seconds: float | None


class ImageKeywords(ConversionKeywords, total=False):
    """Options of a conversion of images."""

    append: bool | None
    label_offset: int | None
    source: str | None
    labels_file: str | os.PathLike[str] | None
    unlabelled: bool | None
    label_from: str | None
    path_column: str | None
    label_column: str | None
    split_column: str | None
    label_separator: str | None
    label_type: str | None
    column_types: str | Mapping[str, str] | None
    raw_tsv: bool | None
    annotations: str | os.PathLike[str] | None
    masks: str | os.PathLike[str] | None
    targets: str | os.PathLike[str] | None
    unannotated: str | None
    source_args: Mapping[str, str | float | bool] | None
    layout: str | None
    check: str | None
    resize_shorter: int | None
    quality: int | None
    jpeg_only: bool | None
    target_half: str | None
    reader: str | None


class TextKeywords(ConversionKeywords, total=False):
    """Options of a conversion of text."""

    append: bool | None
    source: str | None
    source_args: Mapping[str, str | float | bool] | None
    form: str | None
    separator: str | None
    headerless: bool | None
    fields: str | Sequence[str] | Mapping[str, str] | None
    inputs: str | None
    targets: str | None
    targets_file: str | os.PathLike[str] | None
    chat: str | None
    replace_invalid: bool | None
    document_bytes: int | str | None
    key_field: str | None
    keep_key: bool | None
    label_field: str | None
    label_from: str | None
    label_separator: str | None
    labels_file: str | os.PathLike[str] | None
    label_type: str | None
    dedup: bool | None
    tokenizer: str | None
    replace_unknown: bool | None
    special_tokens: str | None
    chat_template: str | os.PathLike[str] | None
    sequence_length: int | None
    inputs_length: int | None
    targets_length: int | None
    train_on_inputs: bool | None
    pack: bool | None
    long_documents: str | None
    eos: str | None
    end_documents: bool | None
    int64_lists: bool | None


class ReshardKeywords(ConversionKeywords, total=False):
    """Options of a conversion of stored records, which keep their order and compression by default."""

    key: str | None
    split_keys: str | Sequence[str] | Mapping[str, str | os.PathLike[str]] | None
    take: str | Sequence[str] | None
    merge_labels: bool | None
    labels_file: str | os.PathLike[str] | None
    label: str | None
    label_offset: int | None
    raw: str | Sequence[str] | Mapping[str, str] | None
    features: str | Sequence[str] | Mapping[str, str] | None
    label_maps: str | Sequence[str] | None
