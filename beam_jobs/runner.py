"""Running a pipeline: the local default, Beam's own flags, and errors as a person should see them."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from beam_jobs import worker
from tpudata.error_text import own_error
from tpudata.errors import UsageError

# DirectRunner first tries to download another engine (Beam 2.68 and later); this one comes with the package.
LOCAL_RUNNER = "FnApiRunner"


def pipeline_options(beam_flags: Sequence[str], workers: int) -> tuple[PipelineOptions, list[str]]:
    """Options of a pipeline.

    Args:
        beam_flags: flags for Beam, such as `--runner=DataflowRunner`.
        workers: processes of the local runner.

    Returns:
        The options, and the words among the flags that Beam does not know.

    Raises:
        UsageError: more workers than one for a runner that counts its own.
    """
    _, unknown = _beam_parser().parse_known_args(list(beam_flags))
    options = PipelineOptions(list(beam_flags))
    standard = options.view_as(StandardOptions)
    standard.runner = standard.runner or LOCAL_RUNNER
    if workers > 1:
        if standard.runner != LOCAL_RUNNER:
            raise UsageError(
                f"--workers is for the local runner; {standard.runner} has flags of its own, see Beam's manual"
            )
        options.view_as(DirectOptions).direct_num_workers = workers
    return options, unknown


def new_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """An empty pipeline; UsageError where there is no runner of the name that the options say."""
    workers = options.view_as(DirectOptions).direct_num_workers
    try:
        if is_local(options) and workers > 1:
            # Beam runs it through a shell; exec makes the worker this process's own child, so that it sees when this one ends.
            command = f"exec {shlex.quote(sys.executable)} -m {worker.__name__} {os.getpid()}"
            environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
            return beam.Pipeline(runner=FnApiRunner(default_environment=environment), options=options)
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise UsageError(str(error)) from None


def is_local(options: PipelineOptions) -> bool:
    """Whether the pipeline runs in this process and its children."""
    return str(options.view_as(StandardOptions).runner) == LOCAL_RUNNER


def beam_flag_names() -> list[str]:
    """Every flag that Beam knows, such as `--runner`."""
    return [name for action in _beam_parser()._actions for name in action.option_strings]


def _beam_parser() -> argparse.ArgumentParser:
    """A parser of every flag that Beam's own options declare; Beam has no public list of them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        add = getattr(options, "_add_argparse_args", None)
        if add is not None:
            add(parser)
    return parser


def run_pipeline(pipeline: beam.Pipeline) -> beam.runners.runner.PipelineResult:
    """Runs a pipeline to its end.

    Raises:
        TpudataError: what a step raised, without Beam's wrapping.
    """
    with _quiet_beam():
        try:
            result = pipeline.run()
            result.wait_until_finish()
        except Exception as error:
            if _is_interrupt(error):
                raise KeyboardInterrupt from error
            known = own_error(error)
            if known is None:
                raise
            raise known from error
    return result


@contextmanager
def _quiet_beam() -> Iterator[None]:
    """Keeps Beam from logging the traceback of an error that is raised, and shown, anyway."""
    loggers = [logging.getLogger(name) for name in ("apache_beam.runners", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _is_interrupt(error: BaseException) -> bool:
    """Whether a runner wrapped a Ctrl-C that met a step at work, or a worker that it ended."""
    text = str(error)
    return "KeyboardInterrupt" in text or f"exited with return code -{signal.SIGINT.value}" in text
