"""The options of the conversions as keywords of their functions; each is a flag of the command, and None is as good as omitted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


class ConversionKeywords(TypedDict, total=False):
    """Options of every conversion.

    Attributes:
        runner: name of Beam's runner, such as `"PrismRunner"`; by default the local one, in this process.
        beam_options: Beam's `PipelineOptions`, a dict of its options, or a list of its flags.
        progress: whether a bar on standard error shows what is done.
        split: shares of splits, such as `{"train": 0.9, "validation": 0.1}` or the text of the flag; by default the input's
            split folders, or all records in `train`.
        shard_bytes: target size of shards, in bytes or as text such as `"100MB"`.
        num_shards: number of shards of every split, instead of a size.
        shards_multiple_of: number of which the number of shards of every split is a multiple.
        on_bad_record: `"fail"`, or `"skip"` to list rejected records in `rejects/` and continue.
        max_bad_records: limit of skipped records: a number, or text such as `"1%"`.
        shuffle: whether records are ordered by a hash of their keys; otherwise as the input lists them.
        seed: seed of the shuffled order.
        compression: `"none"` or `"gzip"`.
        dali_index: whether shards get an index for NVIDIA DALI, too.
        resume: whether to continue a killed run in the output.
        overwrite: whether to replace a complete dataset in the output.
        workers: processes of the local runner.
        read_threads: number of objects that a worker process reads at the same time from a store.
        retry_seconds: seconds for which a failing request to a store is retried.
    """

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
    """Options of a conversion of images.

    Attributes:
        append: whether to add new inputs to the dataset in the output; omitted options are those of the dataset.
        label_offset: label of the first class.
        source: name of the source, such as `"folders"`; by default what the input is.
        labels_file: file of class names, a line each, that fixes the classes and their order.
        unlabelled: whether the images have no classes.
        path_column: column of a list with the paths, or of a Parquet file with the images.
        label_column: column of a list with the classes.
        split_column: column of a list with the splits.
        label_separator: text between several classes in one cell of a CSV list.
        label_type: `"int"` if labels are whole numbers, `"str"` if they are names.
        column_types: by column of a list `"int"`, `"float"`, `"float32"` or `"str"`, with `=VALUE` for missing values.
        raw_tsv: whether quotes are ordinary characters in lists separated by tabs.
        source_args: arguments of the source of an installed package, by name.
        layout: `"imagenet"` for encoded images, `"raw"` for uint8 pixels of one size.
        check: `"header"`, or `"decode"` to decode every image.
        resize_shorter: largest shorter side in pixels, to which larger images are shrunk.
        quality: quality of re-encoded JPEGs, 1 to 100.
        jpeg_only: whether PNGs are stored as JPEG.
        reader: `"tensorflow-tpu"` makes the dataset for the models of github.com/tensorflow/tpu, as the flag `--for` does.
    """

    append: bool | None
    label_offset: int | None
    source: str | None
    labels_file: str | os.PathLike[str] | None
    unlabelled: bool | None
    path_column: str | None
    label_column: str | None
    split_column: str | None
    label_separator: str | None
    label_type: str | None
    column_types: str | Mapping[str, str] | None
    raw_tsv: bool | None
    source_args: Mapping[str, str | float | bool] | None
    layout: str | None
    check: str | None
    resize_shorter: int | None
    quality: int | None
    jpeg_only: bool | None
    reader: str | None


class TextKeywords(ConversionKeywords, total=False):
    """Options of a conversion of text.

    Attributes:
        append: whether to add new inputs to the dataset in the output; omitted options are those of the dataset.
        form: unit of a document: `"lines"`, `"paragraphs"`, `"files"`, or rows of `"jsonl"`, `"csv"`, `"tsv"`, `"raw-tsv"` or
            `"parquet"`; by default rows if a file's name or content shows them, else lines.
        fields: fields of rows that go into the records, such as `["text", "id:int=0"]`.
        replace_invalid: whether bytes that are not UTF-8 become U+FFFD; otherwise their document is rejected.
        document_bytes: size of the largest document, in bytes or as text such as `"64MiB"`.
        dedup: whether one of several documents with equal text is kept.
        tokenizer: `"bytes"`, `"chars"`, `"chars:FILE"`, `"sentencepiece:FILE"` or `"hf:FILE"`; by default text is stored.
        replace_unknown: whether characters that `chars:FILE` does not have get a separate id.
        sequence_length: tokens of every record, cut from the documents in order.
        pack: whether sequences are packed from whole documents.
        long_documents: `"split"` or `"cut"`, treatment by packing of documents longer than a sequence.
        eos: token that ends a document.
        end_documents: whether sequences have an end token after each document.
        int64_lists: whether sequences are stored as lists of int64.
    """

    append: bool | None
    form: str | None
    fields: str | Sequence[str] | Mapping[str, str] | None
    replace_invalid: bool | None
    document_bytes: int | str | None
    dedup: bool | None
    tokenizer: str | None
    replace_unknown: bool | None
    sequence_length: int | None
    pack: bool | None
    long_documents: str | None
    eos: str | None
    end_documents: bool | None
    int64_lists: bool | None


class ReshardKeywords(ConversionKeywords, total=False):
    """Options of a conversion of stored records, which keep their order and compression by default.

    Attributes:
        key: what `split` and `split_keys` know a record by: `"record"`, `"content"` or the name of a feature.
        split_keys: by split, a file that lists the keys of its records, one a line.
        take: the splits of the inputs that are read; by default all.
        merge_labels: whether the labels of datasets with other class names are numbered anew.
        labels_file: for TFRecords of other programs: file of class names, a line each, in the order of labels.
        label: feature that holds the class.
        label_offset: label of the first class of `labels_file`.
        raw: features that hold the bytes of an array, such as `{"image_raw": "uint8:28x28x1"}`.
        label_maps: features that hold label maps.
    """

    key: str | None
    split_keys: str | Sequence[str] | Mapping[str, str | os.PathLike[str]] | None
    take: str | Sequence[str] | None
    merge_labels: bool | None
    labels_file: str | os.PathLike[str] | None
    label: str | None
    label_offset: int | None
    raw: str | Sequence[str] | Mapping[str, str] | None
    label_maps: str | Sequence[str] | None
