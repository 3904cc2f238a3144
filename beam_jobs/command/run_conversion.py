"""The command line of a conversion: its flags, Beam's flags, and the run with its output."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.command.inherited_options import inherit_options
from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.quiet_stderr import hide_worker_tracebacks
from beam_jobs.command.summaries import summarize_append, summarize_plan, summarize_result
from beam_jobs.command.tables import format_append, format_plan, format_result
from beam_jobs.conversion import Conversion
from beam_jobs.conversion_run import convert, plan_conversion
from beam_jobs.options import ConvertOptions, PrintOptions, RunOptions
from beam_jobs.output.removal import end_run
from beam_jobs.run.launch import Launch
from beam_jobs.run.lifetime import check_detachable
from beam_jobs.run.local_workers import end_workers
from beam_jobs.run.places import absolute_path, check_places
from beam_jobs.run.runner import beam_flag_names, is_local, parse_beam_flags
from tpudata.console.interrupts import owns_process
from tpudata.console.signals import interruptible
from tpudata.format import open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import held_request_limits, storage_for

Prepare: TypeAlias = Callable[[argparse.Namespace, PipelineOptions], AbstractContextManager[Conversion]]
# Flags of our other commands that Beam also has: it would accept them silently. Neither parser accepts abbreviations.
SHARED_FLAGS = {"--label": "tpudata reshard", "--labels": "tpudata convert and tpudata reshard"}


def parse_flags(parser: OptionParser, argv: Sequence[str]) -> tuple[argparse.Namespace, PipelineOptions]:
    """Parse a command line. With `--append`, flags that were not passed are set as in the dataset in `--output`.

    Args:
        parser: parser with the options of the conversion.
        argv: flags, without the program's name.

    Returns:
        The parser's flags, and Beam's.

    Raises:
        UsageError: neither the parser nor Beam knows a flag, a value is invalid, or --detach does not fit the runner.
        DatasetError: the manifest of the dataset to append to is damaged.
    """
    flags, unparsed = parse_own_flags(parser, argv, beam_flag_names())
    run = read_options(RunOptions, flags)
    beam_options, unknown = parse_beam_flags(unparsed, run.workers)
    parser.reject_unknown(unknown, beam_flag_names())
    _reject_shared_flags(parser, unparsed, is_remote=not is_local(beam_options))
    if run.detach:
        check_detachable(beam_options)
    return flags, beam_options


def parse_own_flags(
    parser: OptionParser, argv: Sequence[str], also_known: Collection[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of a conversion as `parse_flags` does; return them, and the words of `argv` that are left to Beam.

    Args:
        parser: parser with the options of the conversion.
        argv: flags, without the program's name.
        also_known: names of flags that are left to Beam; other unknown flags are rejected.
    """
    flags, unparsed = parser.parse_with_rest(argv, also_known)
    # `reshard` has no --append.
    if getattr(flags, "append", False):
        inherit_options(flags, parser.options)
    return flags, unparsed


def _reject_shared_flags(parser: OptionParser, beam_words: Sequence[str], *, is_remote: bool) -> None:
    """Raise UsageError for a flag that Beam takes and another command of ours has, unless it can only be meant for Beam.

    Args:
        parser: parser of the command.
        beam_words: words that the parser left to Beam.
        is_remote: whether the runner is not the local one.
    """
    for word, next_word in itertools.zip_longest(beam_words, beam_words[1:], fillvalue=""):
        name, equals_sign, value = word.partition("=")
        # A label of Dataflow is KEY=VALUE, in the same word or in the next one.
        is_meant_for_beam = is_remote and "=" in (value if equals_sign else next_word)
        if name in SHARED_FLAGS and not is_meant_for_beam:
            parser.error(
                f"{name} is a flag of {SHARED_FLAGS[name]}, and of Apache Beam, where it labels a Dataflow job (expected KEY=VALUE"
                " and --runner=DataflowRunner). Omit it."
            )


def resolve_places(options: ConvertOptions, beam_options: PipelineOptions, *, dry_run: bool = False) -> ConvertOptions:
    """Return the options with paths that are valid on the workers of the runner; unchanged in a dry run.

    Raises:
        UsageError: a path is on this machine, and the workers are on other machines.
    """
    if dry_run:  # The plan is made on this machine, so any path is valid.
        return options
    check_places(beam_options, {"--input": options.input, "--output": options.output})
    source, output = absolute_path(options.input, beam_options), absolute_path(options.output, beam_options)
    return dataclasses.replace(options, input=source, output=output)


def check_output_is_writable(options: ConvertOptions, beam_options: PipelineOptions, *, dry_run: bool) -> None:
    """Raise StorageError, before the input is listed, if this process has to write to the output and cannot."""
    # Workers on other machines have different accounts.
    if is_local(beam_options) and not dry_run:
        storage_for(options.output).check_writable(options.output)


@contextlib.contextmanager
def hold_limits(options: ConvertOptions, beam_options: PipelineOptions) -> Iterator[None]:
    """Apply the limits on storage requests while the command looks at its input and its output; the run applies its own."""
    with held_request_limits(options.apply_engine_limits(is_local=is_local(beam_options)).request_limits):
        yield


def run_job(parser: OptionParser, prepare: Prepare, argv: Sequence[str]) -> int:
    """Run the command of a conversion.

    Args:
        parser: parser of the flags of the command.
        prepare: returns a context with the conversion that flags and Beam's options describe.
        argv: flags, without the program's name.

    Returns:
        The exit code 0.

    Raises:
        TpudataError: the usage is wrong, or the job failed.
    """
    flags, beam_options = parse_flags(parser, argv)
    with prepare(flags, beam_options) as conversion:
        return run_conversion(
            conversion, beam_options, read_options(RunOptions, flags), read_options(PrintOptions, flags)
        )


def run_conversion(
    conversion: Conversion, beam_options: PipelineOptions, run: RunOptions, printing: PrintOptions
) -> int:
    """Run a conversion and print its result.

    Args:
        conversion: the conversion to run, or to plan in a dry run.
        beam_options: Beam's options, such as the runner.
        run: options of the run; a dry run prints the plan instead.
        printing: options of what is printed.

    Returns:
        The exit code 0.
    """
    if run.dry_run:
        draws_bar = sys.stderr.isatty() and not printing.quiet
        plan = plan_conversion(conversion, draws_bar)
        _print(
            printing,
            plan.warnings,
            text=lambda: format_plan(
                plan, conversion.input_noun, includes_duplicates=conversion.omit_duplicates is not None
            ),
            summary=lambda: summarize_plan(plan),
        )
        return 0
    started = time.monotonic()
    output = conversion.options.output
    is_terminal = sys.stderr.isatty()
    launch = Launch(
        _report,
        draws_bar=is_terminal and not printing.quiet,
        reports_counters=not (is_terminal or printing.quiet),
        detach=run.detach,
    )
    if owns_process():
        # Freezing keeps the garbage collector from scanning Beam's modules: `python -m beam_jobs.KIND` imports them without
        # `loading_without_gc`.
        gc.freeze()
    with hide_worker_tracebacks(), interruptible(end_workers, functools.partial(end_run, output)):
        append_result = convert(conversion, beam_options, launch)
    if run.detach:
        notice = f"{output}: complete when it has a {MANIFEST_NAME}; `tpudata inspect {output}` then shows the dataset"
        _print(printing, {}, text=lambda: notice, summary=lambda: {"output": output})
        return 0
    seconds = time.monotonic() - started
    if append_result is not None:
        _print(
            printing,
            append_result.after.warnings,
            text=lambda: format_append(append_result, output, seconds),
            summary=lambda: summarize_append(append_result, output, seconds),
        )
        return 0
    manifest = open_dataset(output).manifest
    why_ignored = conversion.why_ignored() if conversion.why_ignored and manifest.source.ignored_files else ""
    _print(
        printing,
        manifest.warnings,
        text=lambda: "\n".join([format_result(manifest, output, seconds, why_ignored), *conversion.remarks(manifest)]),
        summary=lambda: summarize_result(manifest, output, seconds),
    )
    return 0


def _print(
    printing: PrintOptions,
    warnings: Mapping[str, str],
    *,
    text: Callable[[], str],
    summary: Callable[[], dict[str, Any]],
) -> None:
    """Print a result as JSON with --json, only its warnings on stderr with --quiet, otherwise as text.

    Args:
        printing: options of what is printed.
        warnings: the warnings by kind.
        text: returns the result as text; not called with --json or --quiet.
        summary: returns the JSON object; called only with --json.
    """
    if printing.json:
        print(json.dumps(summary(), indent=1))
    elif printing.quiet:
        for _, line in sorted(warnings.items()):
            _report(f"warning: {line}")
    else:
        print(text())


def _report(line: str) -> None:
    print(f"tpudata: {line}", file=sys.stderr, flush=True)
