"""Conversion of stored records to another dataset: `python -m beam_jobs.reshard`, the same as `tpudata reshard`.

The inputs are in beam_jobs.stored_records, the steps in beam_jobs.pipeline.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports, which take most of a second. The module is imported again by its name, and this copy ends here.
    import sys

    from tpudata.console.interrupts import end_on_interrupt

    end_on_interrupt()
    from tpudata.console.process import run_module

    sys.exit(run_module("beam_jobs.reshard", "python -m beam_jobs.reshard"))

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import (
    check_output_is_writable,
    hold_limits,
    run_job,
)
from beam_jobs.conversion import Conversion
from beam_jobs.options import ConvertOptions, PrintOptions, RunOptions
from beam_jobs.references.packs.pack import Pack
from beam_jobs.run.places import absolute_path, check_places
from beam_jobs.sources.classes import read_labels
from beam_jobs.stored_records.converter import DatasetConverter, ForeignConverter, estimate_ratio
from beam_jobs.stored_records.find_inputs import StoredInputs, check_output_outside, check_splits, find_inputs
from beam_jobs.stored_records.foreign.first_records import FirstRecords
from beam_jobs.stored_records.foreign.tfds_files import add_tfds_facts
from beam_jobs.stored_records.merged_datasets import MergedDatasets
from beam_jobs.stored_records.options import CONTENT, RECORD, ReshardOptions
from beam_jobs.stored_records.source import StoredRecordSource
from beam_jobs.stored_records.splits import Splitter
from beam_jobs.stored_records.stored_files import StoredDataset
from tpudata.console.option import stored_options
from tpudata.console.tables import count_text
from tpudata.errors import UsageError
from tpudata.format import Dataset, Manifest

# Feature with the name of an image's input file. As the key of a record, it gives the same splits as `convert` did.
_FILE_NAME = "image/filename"
_FORMS = "DIR is the folder of a dataset, a TFRecord file of another program, or a folder or a pattern of such files."
_TOPICS = ("dataset/reshard", "runs")
_OPTIONS = (RunOptions, PrintOptions, ReshardOptions, ConvertOptions)
# Help of options that differ from those of other conversions: stored records keep their order, compression and splits.
_HELPS = {
    "split": "assign records to splits by a stable hash of their key, such as train=0.9,validation=0.1 (default: the splits of the"
    " inputs)",
    "shuffle": "order records by a hash of their file and number; --no-shuffle keeps the order of the input (default false)",
    "compression": "compression of the shards; gzip is for text and numbers, not for images; TFDS, Grain and DALI do not read it"
    " (default: that of the datasets)",
    "label_offset": "label of the first class of --labels (default 0)",
}


def run(argv: Sequence[str], prog: str = "tpudata reshard") -> int:
    """Run the job with the arguments of a command line, see `run_job`; messages call the command `prog`."""
    return run_job(new_parser(prog), prepare, argv)


def new_parser(prog: str) -> OptionParser:
    """Return the parser of the job's flags, for a command called `prog`."""
    description = "Writes datasets or TFRecord files as one dataset with different shards or splits."
    # Without flags for two options: the inputs are positional, and reshard appends to no dataset.
    omitted_options = ("input", "append")
    parser = OptionParser(prog, description, _FORMS, _OPTIONS, omitted_options, _HELPS, _TOPICS)
    parser.add_argument(
        "inputs", metavar="DIR", nargs="+", help="datasets or TFRecord files to read; several are merged"
    )
    return parser


@contextlib.contextmanager
def prepare(flags: argparse.Namespace, beam_options: PipelineOptions) -> Iterator[Conversion]:
    """Yield the conversion that flags describe, ready to be planned or run; its requests are limited until the context ends.

    Args:
        flags: flags of the parser.
        beam_options: Beam's options, such as the runner.

    Raises:
        TpudataError: the flags do not fit each other, or the inputs or the output are invalid.
    """
    labels = None if flags.labels_file is None else read_labels(flags.labels_file).names
    reshard_options = read_options(ReshardOptions, flags, labels=labels)
    inputs = flags.inputs
    dry_run = read_options(RunOptions, flags).dry_run
    if not dry_run:
        inputs, flags.output = _resolve_places(inputs, flags.output, beam_options)
    # `shuffle=False` is only the default: --shuffle overrides it.
    options = read_options(ConvertOptions, flags, input=", ".join(inputs), shuffle=False)
    reshard_options.check_with(options)
    with hold_limits(options, beam_options):
        check_output_is_writable(options, beam_options, dry_run=dry_run)
        yield make_reshard_conversion(options, inputs, reshard_options, keeps_compression=flags.compression is None)


def make_reshard_conversion(
    options: ConvertOptions, inputs: Sequence[str], reshard_options: ReshardOptions, *, keeps_compression: bool = False
) -> Conversion:
    """Inspect the inputs, and return their conversion, ready to be planned or run.

    Args:
        options: options of the output and its shards; `input` names the inputs for messages and the manifest.
        inputs: datasets, or TFRecord files of other programs.
        reshard_options: options for the stored records.
        keeps_compression: whether shards are compressed as the datasets are, instead of by the options.

    Raises:
        SourceError: an input does not exist or has no records.
        DatasetError: the datasets do not fit each other.
        UsageError: the options do not fit the inputs.
    """
    check_output_outside(inputs, options.output)
    stored_inputs = find_inputs(inputs, reshard_options.take)
    check_splits(stored_inputs.splits, reshard_options.take, assigns_splits=options.split is not None)
    if stored_inputs.datasets:
        return _make_dataset_conversion(options, inputs, stored_inputs, reshard_options, keeps_compression)
    return _make_foreign_conversion(options, inputs, stored_inputs, reshard_options)


def _make_dataset_conversion(
    options: ConvertOptions,
    inputs: Sequence[str],
    stored_inputs: StoredInputs,
    reshard_options: ReshardOptions,
    keeps_compression: bool,
) -> Conversion:
    """Return the conversion of datasets into one; raise UsageError if an option does not fit them.

    Args:
        options: options of the output and its shards; `input` names the inputs for messages and the manifest.
        inputs: paths of the datasets.
        stored_inputs: the datasets at the inputs.
        reshard_options: options for the stored records.
        keeps_compression: whether shards are compressed as the datasets are, instead of by the options.
    """
    _reject_foreign_options(reshard_options, stored_inputs.datasets[0].path)
    merged = MergedDatasets.merge(stored_inputs.datasets, reshard_options)
    options = dataclasses.replace(
        options,
        label_offset=merged.label_offset,
        compression=merged.compression if keeps_compression else options.compression,
    )
    names = {feature.name for feature in merged.features}
    if reshard_options.key not in (None, RECORD, CONTENT) and reshard_options.key not in names:
        raise UsageError(
            f"--key={reshard_options.key}: the datasets have no such feature. They have {', '.join(sorted(names))}."
        )
    # Without --key, the key is the file name if records have one, as records of images do.
    key = reshard_options.key or (_FILE_NAME if _FILE_NAME in names else RECORD)
    if reshard_options.key is None and key == _FILE_NAME and reshard_options.take and options.split:
        # By default, --split hashes file names again, and cannot divide a split that came from the same hashes.
        _reject_hashed_splits(stored_inputs.datasets)
    splitter = Splitter(key, reshard_options.split_keys, options.split)
    converter = DatasetConverter(
        schema=merged.features,
        label_numbers=merged.label_numbers,
        label="" if merged.label is None else merged.label.name,
        label_offset=merged.label_offset,
        decoded=merged.list_decoded_sizes(),
        carried=merged.sum_counts(reshard_options.take),
        converted_before=merged.count_converted(),
        list_maxima=merged.join_maxima(),
        tokenizer=merged.tokenizer_paths,
    )
    origins = [
        {"created_by": dataset.manifest.created_by, "fingerprint": dataset.manifest.source.fingerprint}
        for dataset in stored_inputs.datasets
    ]
    deciding_options = options.deciding_options()
    if options.split is None and "split" in merged.options:
        # The datasets' own --split still decides.
        deciding_options.pop("split", None)
    return _make_conversion(
        options,
        StoredRecordSource(
            paths=tuple(inputs),
            take=reshard_options.take,
            datasets=tuple(map(StoredDataset.from_dataset, stored_inputs.datasets)),
            splitter=splitter,
            class_names=merged.class_names,
        ),
        converter,
        layout=merged.layout,
        deciding_options={
            **merged.options,
            **deciding_options,
            "reshard": {**stored_options(reshard_options), "inputs": origins},
        },
        files=tuple(name for name, _ in merged.tokenizer_paths),
    )


def _reject_foreign_options(reshard_options: ReshardOptions, path: str) -> None:
    """Raise UsageError if an option describes TFRecords of other programs; the input is a dataset at `path`."""
    for flag, value in (
        ("--labels", reshard_options.labels_file),
        ("--label", reshard_options.label),
        ("--raw", reshard_options.raw),
        ("--label-map", reshard_options.label_maps),
        ("--feature", reshard_options.features),
    ):
        if value:
            raise UsageError(
                f"{flag} is for TFRecords of other programs, and {path} is a dataset, whose manifest has its features. Omit it,"
                f" or pass the dataset's files to declare them anew: '{path}/SPLIT-*'."
            )


def _reject_hashed_splits(datasets: Sequence[Dataset]) -> None:
    """Raise UsageError if the splits were assigned by hashes of file names: the same hashes cannot divide one split evenly."""
    for dataset in datasets:
        if dataset.manifest.options.get("split"):
            raise UsageError(
                f"--split: the splits of {dataset.path} were made by --split from hashes of file names, which cannot divide one of"
                " them evenly. Pass --key=content."
            )


def _make_foreign_conversion(
    options: ConvertOptions, inputs: Sequence[str], stored_inputs: StoredInputs, reshard_options: ReshardOptions
) -> Conversion:
    """Return the conversion of other programs' TFRecords, whose schema is inferred or declared.

    Args:
        options: options of the output and its shards; `input` names the inputs for messages and the manifest.
        inputs: paths of the files, of folders of files, or patterns.
        stored_inputs: the files at the inputs.
        reshard_options: options for the stored records.

    Raises:
        UsageError: an option does not fit the records.
    """
    if reshard_options.merge_labels:
        raise UsageError("--merge-labels is for datasets, whose classes have names. Omit it.")
    reshard_options = add_tfds_facts(reshard_options, inputs)
    first_records = FirstRecords.read(stored_inputs.first_files)
    raw_names = {raw.name for raw in reshard_options.raw}
    declared_names = {feature.name for feature in reshard_options.features}
    label = None
    if reshard_options.labels is not None:
        label = first_records.find_label(reshard_options.label)
    if reshard_options.key not in (None, RECORD, CONTENT):
        first_records.check_feature("--key", reshard_options.key)
    for name in raw_names:
        first_records.check_feature("--raw", name)
    for name in declared_names:
        first_records.check_feature("--feature", name)
    for name in reshard_options.label_maps:
        first_records.check_feature("--label-map", name)
        if name in raw_names:
            raise UsageError(f"--label-map={name}: --raw describes this feature, too. Omit one of them.")
    converter = ForeignConverter(
        images=tuple(sorted(first_records.images - raw_names - declared_names - {*reshard_options.label_maps})),
        raw=reshard_options.raw,
        label_maps=reshard_options.label_maps,
        declared=reshard_options.features,
        label=label,
        label_offset=options.label_offset,
    )
    splitter = Splitter(reshard_options.key or RECORD, reshard_options.split_keys, options.split)
    source = StoredRecordSource(
        paths=tuple(inputs),
        take=reshard_options.take,
        datasets=(),
        splitter=splitter,
        class_names=reshard_options.labels,
        skips_other_files=stored_inputs.skips_other_files,
    )
    deciding_options = {**options.deciding_options(), "reshard": stored_options(reshard_options)}
    return _make_conversion(
        options,
        source,
        converter,
        layout=first_records.find_layout(raw_names),
        deciding_options=deciding_options,
        files=(),
    )


def _make_conversion(
    options: ConvertOptions,
    source: StoredRecordSource,
    converter: DatasetConverter | ForeignConverter,
    *,
    layout: str,
    deciding_options: dict[str, object],
    files: tuple[str, ...],
) -> Conversion:
    """Return the conversion of stored records; an append is not possible, so keys are not stored.

    The arguments are attributes of `Conversion`.
    """
    return Conversion(
        options=options,
        source=source,
        converter=converter,
        layout=layout,
        extra_bytes=_count_no_extra_bytes,
        estimate=functools.partial(estimate_ratio, options.compression),
        deciding_options=deciding_options,
        files=files,
        input_noun="record",
        has_unique_keys=True,
        stores_keys=False,
        why_ignored=source.describe_ignored_files,
        remarks=functools.partial(_describe_missing_keys, source.splitter.lists),
    )


def _count_no_extra_bytes(pack: Pack) -> npt.NDArray[np.int64]:
    """Return 0 for each record, whose bytes already include its strings: int64 [n]."""
    return np.zeros(len(pack.keys), np.int64)


def _resolve_places(inputs: Sequence[str], output: str, beam_options: PipelineOptions) -> tuple[list[str], str]:
    """Return the absolute paths of the inputs and of the output; UsageError if one is not valid on the workers."""
    check_places(beam_options, {**{f"DIR {n}": path for n, path in enumerate(inputs, 1)}, "--output": output})
    return [absolute_path(path, beam_options) for path in inputs], absolute_path(output, beam_options)


def _describe_missing_keys(lists: Mapping[str, frozenset[str]], manifest: Manifest) -> Iterator[str]:
    """Yield a line for each split that has fewer records than its list has keys."""
    for name, keys in lists.items():
        # A lower bound: several records of the split may have one key.
        missing_count = len(keys) - (manifest.splits[name].records if name in manifest.splits else 0)
        if missing_count > 0:
            # As wide as the words that begin the lines of `format_result`.
            yield f"{'no record':<11} for at least {count_text(missing_count, 'key')} of {len(keys)} in the list of {name}"
