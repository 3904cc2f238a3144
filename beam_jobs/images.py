"""Converts images into a dataset: `python -m beam_jobs.images`, the same as `tpudata convert images`.

    source -> references -> plan -> shards -> metadata

References (path, key, label, size) travel; the bytes of an image are read by the worker that writes its shard, and nowhere else.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton, TaggedOutput

from beam_jobs.finish import WriteMetadata
from beam_jobs.flags import add_common_flags, common_options
from beam_jobs.image_records import LAYOUT, RECORD_OVERHEAD, ImageConverter
from beam_jobs.labels import CollectLabels
from beam_jobs.options import ConvertOptions
from beam_jobs.output import prepare_output
from beam_jobs.plan import MakePlan, Plan
from beam_jobs.reference import Reference
from beam_jobs.runner import beam_flag_names, new_pipeline, pipeline_options, run_pipeline
from beam_jobs.shards import WriteShards
from beam_jobs.sources import Source, open_source
from beam_jobs.table import plan_table, result_table
from tpudata.flags import FlagParser
from tpudata.format import open_dataset
from tpudata.process import run_command

_IGNORED = "ignored"
_LAYOUTS = """
SRC is a folder whose subfolders are classes, SRC/CLASS/**/FILE, or SRC/{train,validation,test}/CLASS/**/FILE.
Any flag of Apache Beam is taken too, such as --runner=DataflowRunner --project=... (default: a local runner).
"""


def run(argv: Sequence[str], prog: str = "tpudata convert images") -> int:
    """Runs the job from the command line.

    Args:
        argv: flags, without the program's name.
        prog: the command as the person typed it.

    Returns:
        The exit code 0.

    Raises:
        TpudataError: the usage is wrong, or the job failed.
    """
    parser = FlagParser(prog, "Convert JPEG and PNG images into TFRecord shards.", _LAYOUTS)
    add_common_flags(parser)
    flags, rest = parser.parse_with_rest(argv, beam_flag_names())
    beam_options, unknown = pipeline_options(rest, flags.workers)
    parser.refuse_unknown(unknown, beam_flag_names())
    options = common_options(flags)
    if flags.dry_run:
        print(plan_table(plan_images(options)))
        return 0
    started = time.monotonic()
    convert_images(options, beam_options)
    print(result_table(open_dataset(options.output).manifest, options.output, time.monotonic() - started))
    return 0


def convert_images(options: ConvertOptions, beam_options: PipelineOptions) -> None:
    """Converts images into a dataset; returns when it is complete.

    Args:
        options: what to convert, and how.
        beam_options: where it runs.

    Raises:
        TpudataError: the input or the output is not as it should be, or a record was refused.
    """
    source = open_source(options)
    prepare_output(options.output, resume=options.resume, overwrite=options.overwrite)
    converter = ImageConverter(options.label_offset)
    pipeline = new_pipeline(beam_options)
    listed = (
        pipeline
        | "Units" >> beam.Create(source.units(), reshuffle=True)
        | "List" >> beam.ParDo(_List(source)).with_outputs(_IGNORED, main="references")
    )
    references = listed.references
    plan = AsSingleton(references | "Plan" >> beam.CombineGlobally(MakePlan(options, RECORD_OVERHEAD)))
    ignored = AsSingleton(listed[_IGNORED] | "CountIgnored" >> beam.CombineGlobally(sum))
    if source.labels is None:
        names = references | "Names" >> beam.Map(lambda reference: Reference(*reference).labels)
        labels = AsSingleton(names | "Labels" >> beam.CombineGlobally(CollectLabels(source.integer_labels)))
    else:
        labels = AsSingleton(pipeline | "Labels" >> beam.Create([source.labels]))
    (
        references
        | "Place" >> beam.Map(_place, plan)
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShards" >> beam.ParDo(WriteShards(options.output, converter, options.resume), plan, labels)
        | "Collect" >> beam.combiners.ToList()
        | "WriteMetadata"
        >> beam.ParDo(WriteMetadata(options, converter, LAYOUT, source.has_classes), plan, labels, ignored)
    )
    run_pipeline(pipeline)


def plan_images(options: ConvertOptions) -> Plan:
    """The plan of a conversion, made in this process; nothing is written."""
    source = open_source(options)
    make = MakePlan(options, RECORD_OVERHEAD)
    tally = make.create_accumulator()
    for unit in source.units():
        for reference in source.references(unit, []):
            tally = make.add_input(tally, reference)
    return make.extract_output(tally)


class _List(beam.DoFn):  # type: ignore[misc]
    """Yields a reference to each record of a unit of a source, and aside how many files were passed over."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def process(self, unit: Any) -> Iterator[Any]:
        ignored: list[str] = []
        for reference in self._source.references(unit, ignored):
            yield tuple(reference)
        yield TaggedOutput(_IGNORED, len(ignored))


def _place(reference: tuple[Any, ...], plan: Plan) -> tuple[tuple[str, int], tuple[Any, ...]]:
    """Keys a reference by the shard that it goes into."""
    placed = Reference(*reference)
    return (placed.split, plan.splits[placed.split].shard_of(placed.position)), reference


if __name__ == "__main__":
    sys.exit(run_command(functools.partial(run, prog="python -m beam_jobs.images")))
