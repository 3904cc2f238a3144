"""Converts images into a dataset: `python -m beam_jobs.images`, the same as `tpudata convert images`.

Sources are in beam_jobs.sources, the steps in beam_jobs.pipeline, and the rules for images in beam_jobs.image_records.rules.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports, which take most of a second. The module is imported again by its name, and this copy ends here.
    import sys

    from tpudata.console.interrupts import end_on_interrupt

    end_on_interrupt()
    from tpudata.console.process import run_module

    sys.exit(run_module("beam_jobs.images", "python -m beam_jobs.images"))

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.reader_flag import ReaderOption, apply_reader, check_reader
from beam_jobs.command.run_conversion import (
    check_output_is_writable,
    hold_limits,
    resolve_places,
    run_job,
)
from beam_jobs.conversion import Conversion
from beam_jobs.image_records.annotated.converter import AnnotatedConverter
from beam_jobs.image_records.converter import ImageConverter, estimate_ratio
from beam_jobs.image_records.options import IMAGENET, ImageOptions
from beam_jobs.options import ConvertOptions, PrintOptions, RunOptions
from beam_jobs.planning.warning_lines import InputFacts
from beam_jobs.run.places import absolute_path, check_places
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.annotated.source import AnnotatedImages
from beam_jobs.sources.open_source import open_source
from beam_jobs.sources.source import Source
from beam_jobs.sources.tars.form import PAIRS
from beam_jobs.sources.tars.tars import Tars
from tpudata.console.option import list_path_entries, stored_options
from tpudata.format import open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import storage_for

_FORMS = (
    "SRC is a folder whose subfolders are classes (under train, validation and test folders, or not), a CSV or JSONL list of paths"
    " and labels, tar files (WebDataset and ImageNet's tar of tars too), zip archives, Parquet files, IDX pairs such as MNIST's,"
    " files of arrays (CIFAR, SVHN, .npz), or a pattern."
)
_TOPICS = ("which_command", "datasets", "sources", "annotations", "annotation_forms", "image_rules", "runs", "append")
_OPTIONS = (RunOptions, PrintOptions, SourceOptions, ConvertOptions, ReaderOption, ImageOptions)


def run(argv: Sequence[str], prog: str = "tpudata convert images") -> int:
    """Run the job with the arguments of a command line, see `run_job`; messages call the command `prog`."""
    return run_job(new_parser(prog), prepare, argv)


def new_parser(prog: str) -> OptionParser:
    """Return the parser of the job's flags, for a command called `prog`."""
    return OptionParser(prog, "Convert images into TFRecord shards.", _FORMS, _OPTIONS, topics=_TOPICS)


@contextlib.contextmanager
def prepare(flags: argparse.Namespace, beam_options: PipelineOptions) -> Iterator[Conversion]:
    """Yield the conversion that flags describe, ready to be planned or run; its requests are limited until the context ends.

    Args:
        flags: flags of the parser.
        beam_options: Beam's options, such as the runner.

    Raises:
        TpudataError: the flags do not fit each other, or the input or the output is invalid.
    """
    apply_reader(flags)
    dry_run = read_options(RunOptions, flags).dry_run
    options = resolve_places(read_options(ConvertOptions, flags), beam_options, dry_run=dry_run)
    with hold_limits(options, beam_options):
        check_output_is_writable(options, beam_options, dry_run=dry_run)
        source_options = _resolve_annotations(read_options(SourceOptions, flags), beam_options, dry_run=dry_run)
        conversion = make_image_conversion(options, source_options, read_options(ImageOptions, flags))
        check_source = functools.partial(check_reader, flags.reader, input_path=flags.input)
        check_source(conversion.source)
        # Checked again after a scan, which may find several labels.
        yield dataclasses.replace(conversion, check_source=check_source)


def _resolve_annotations(options: SourceOptions, beam_options: PipelineOptions, *, dry_run: bool) -> SourceOptions:
    """Return the options with absolute paths of annotations, masks and targets; UsageError if the workers cannot open one.

    A dry run makes the plan on this machine, so any path is valid.
    """
    absolute_paths: dict[str, Any] = {}
    for name in ("annotations", "masks", "targets"):
        path = getattr(options, name)
        if path is not None:
            if not dry_run:
                check_places(beam_options, {f"--{name}": path})
            absolute_paths[name] = absolute_path(path, beam_options)
    return dataclasses.replace(options, **absolute_paths)


def make_image_conversion(options: ConvertOptions, source_options: SourceOptions, images: ImageOptions) -> Conversion:
    """Inspect the input, and return its conversion, ready to be planned or run."""
    source = _match_appended_features(options, open_source(options, source_options))
    if isinstance(source, Tars) and (images.layout != IMAGENET or images.target_half is not None):
        # Label maps fit whole pictures only, and only layout imagenet stores them.
        source = dataclasses.replace(source, map_dtype="")
    converter: ImageConverter
    if isinstance(source, AnnotatedImages) or source.annotations is not None:
        converter = AnnotatedConverter(options.label_offset, images).apply_columns(source.record_columns)
    else:
        converter = ImageConverter(options.label_offset, images, source.several_labels, source.features)
    return Conversion(
        options=options,
        source=source,
        converter=converter,
        layout=images.layout,
        extra_bytes=converter.extra_bytes,
        estimate=functools.partial(estimate_ratio, converter),
        path_options=list_path_entries(source_options),
        deciding_options={**options.deciding_options(), **stored_options(source_options), **stored_options(images)},
        why_ignored=_describe_ignored_files if source_options.is_annotated else None,
        facts=InputFacts.from_source(source, source_options),
    )


def _describe_ignored_files() -> str:
    """Return why files of a source with annotations were ignored, to follow their number."""
    return "by name, without annotation, or in no list of a split"


def _match_appended_features(options: ConvertOptions, source: Source) -> Source:
    """Return the source; in an append of tars of samples, with only the dataset's features, since earlier versions stored fewer."""
    storage = storage_for(options.output)
    if not (options.append and isinstance(source, Tars) and source.form == PAIRS):
        return source
    if storage.stat(storage.join(options.output, MANIFEST_NAME)) is None:
        return source
    return source.select_features(feature.name for feature in open_dataset(options.output).manifest.features)
