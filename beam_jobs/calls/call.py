"""A conversion that a program calls: the job of a command, without what only a command may do to its process."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.calls.command_words import make_command_words, translate_errors, translate_flags
from beam_jobs.calls.plan import ConversionPlan, PlannedSplit
from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import parse_own_flags
from beam_jobs.command.tables import format_plan
from beam_jobs.conversion import Conversion
from beam_jobs.conversion_run import convert, plan_conversion
from beam_jobs.options import RunOptions
from beam_jobs.run.launch import Launch
from beam_jobs.run.lifetime import check_detachable
from beam_jobs.run.runner import copy_pipeline_options, read_program_options
from tpudata.console.nearest import suggestion
from tpudata.errors import UsageError
from tpudata.format import Manifest, open_dataset

# Keywords for which the command has no flag.
_RUN_KEYWORDS = ("pipeline", "runner", "beam_options", "progress")
_log = logging.getLogger("tpudata")


class CommandModule(Protocol):
    """The module of a command."""

    def new_parser(self, prog: str) -> OptionParser:
        """Return the parser of its flags."""

    def prepare(self, flags: argparse.Namespace, beam_options: PipelineOptions) -> AbstractContextManager[Conversion]:
        """Return a context with the conversion that flags describe."""


def call_job(
    name: str, job: CommandModule, paths: Sequence[str], option_names: Sequence[str], options: Mapping[str, Any]
) -> Manifest | ConversionPlan | None:
    """Run or plan a conversion.

    Args:
        name: full name of the function that is called, for messages.
        job: module of the command.
        paths: the input and the output as words of the command line.
        option_names: names of the options that the function takes.
        options: the options, and whether to plan only (`dry_run`) or to return when the job is submitted (`detach`).

    Returns:
        The manifest; the plan with `dry_run`, None with `detach`.

    Raises:
        TypeError: an option is unknown.
        TpudataError: the command would fail; the message names keywords in place of flags.
    """
    for keyword in options:
        if keyword not in option_names:
            raise TypeError(
                f"{name}() got an unexpected keyword argument {keyword!r}{suggestion(keyword, option_names)}"
            )
    parser = job.new_parser(name)
    keywords = ["input", "output", *option_names]
    with translate_errors(name, keywords, parser.options):
        conversion_options = {keyword: value for keyword, value in options.items() if keyword not in _RUN_KEYWORDS}
        # No words are left to Beam: each keyword has a flag of the command.
        flags, _ = parse_own_flags(parser, [*paths, *make_command_words(conversion_options, parser.options)])
        run = read_options(RunOptions, flags)
        beam_options = _read_beam_options(options, run.workers)
        if run.detach:
            check_detachable(beam_options)
        with job.prepare(flags, beam_options) as conversion:
            # `progress` and `pipeline` are arguments only of the function, without a flag of the command.
            draws_bar = bool(options.get("progress"))
            if run.dry_run:
                return _make_plan(conversion, draws_bar)
            runner = getattr(options.get("pipeline"), "runner", None)
            launch = Launch(_log.info, draws_bar=draws_bar, detach=run.detach, runner=runner)
            append_result = convert(conversion, beam_options, launch)
        if run.detach:
            return None
        manifest = open_dataset(conversion.options.output).manifest
    warnings = manifest.warnings if append_result is None else append_result.new_warnings
    for line in (*warnings.values(), *conversion.remarks(manifest)):
        _log.warning("%s: %s", conversion.options.output, translate_flags(line, name, keywords, parser.options))
    return manifest


def _read_beam_options(options: Mapping[str, Any], workers: int) -> PipelineOptions:
    """Return Beam's options for a call: those of the pipeline, or those that keywords set; UsageError if both are passed."""
    pipeline = options.get("pipeline")
    if pipeline is None:
        return read_program_options(options.get("beam_options"), options.get("runner"), workers)
    extra_name = next((name for name in ("runner", "beam_options", "workers") if options.get(name) is not None), None)
    if extra_name is not None:
        raise UsageError(f"pipeline: it has a runner and options (got {extra_name}, too). Omit one.")
    return copy_pipeline_options(pipeline)


def _make_plan(conversion: Conversion, draws_bar: bool) -> ConversionPlan:
    """Return the plan of a conversion in the form that callers get, with the text that the command would print."""
    plan = plan_conversion(conversion, draws_bar)
    splits = {
        name: PlannedSplit(split.record_count, split.shard_count, split.estimated_bytes)
        for name, split in plan.splits.items()
    }
    text = format_plan(plan, conversion.input_noun, includes_duplicates=conversion.omit_duplicates is not None)
    return ConversionPlan(splits, plan.input_count, plan.bytes, plan.warnings, text)
