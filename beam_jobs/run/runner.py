"""Runners and options of a pipeline: the local default, Beam's own flags, and errors that name a flag."""

from __future__ import annotations

import argparse
import copy
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, TypeOptions
from apache_beam.runners.runner import PipelineRunner

from beam_jobs.run.failures import MANUAL
from beam_jobs.run.local_workers import LocalRunner
from tpudata.console.interrupts import owns_process
from tpudata.console.nearest import suggestion
from tpudata.console.process import limit_workers
from tpudata.error_text.lines import one_line
from tpudata.errors import MissingExtraError, UsageError

# DirectRunner first tries to download another engine (Beam 2.68 and later); FnApiRunner is part of Beam's package.
LOCAL_RUNNER = "FnApiRunner"
_IN_PROCESS = (
    *(LOCAL_RUNNER, LocalRunner.__name__),
    *("DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner", "TestDirectRunner", "InteractiveRunner"),
)
_View = TypeVar("_View", bound=PipelineOptions)


class _Options(PipelineOptions):  # type: ignore[misc]
    """Options that make each of their views once.

    Beam makes views of its options at each step, and parses the flags for each: a sixth of the CPU time of a small run.
    """

    def view_as(self, cls: type[_View]) -> _View:
        """Return the view of a class of options, which shares its values with these options."""
        # The views are kept in `__dict__`, since Beam treats attributes as options.
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: _View = views[cls]
        return view

    def __getstate__(self) -> dict[str, object]:
        """Return the state for copies, without the views, which share their values with these options."""
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


def parse_beam_flags(beam_flags: Sequence[str], workers: int) -> tuple[PipelineOptions, list[str]]:
    """Return the options of a pipeline, and the words among the flags that Beam does not know.

    Args:
        beam_flags: flags for Beam, such as `--runner=DataflowRunner`.
        workers: processes of the local runner.

    Raises:
        UsageError: a flag of Beam has an invalid value, or several workers are requested of a runner that is not local.
    """
    _, unknown_words = _make_beam_parser().parse_known_args(list(beam_flags))
    options = _Options(list(beam_flags))
    _set_runner(options, workers)
    return options, unknown_words


def read_program_options(
    program_options: PipelineOptions | Mapping[str, Any] | Sequence[str] | None, runner: str | None, workers: int
) -> PipelineOptions:
    """Return the options of a pipeline that a program passes.

    Args:
        program_options: options, which are not changed; a dict of them by name, a list of flags, or None.
        runner: name of the runner; None uses the runner of the options.
        workers: processes of the local runner.

    Raises:
        UsageError: Beam has no such option, `program_options` are of the wrong type, both arguments name a runner, or several
            workers are requested of a runner that is not local.
    """
    if isinstance(program_options, PipelineOptions):
        options = copy.deepcopy(program_options)
    elif isinstance(program_options, Mapping):
        # An option is named by its flag or its attribute, such as `no_use_public_ips` and `use_public_ips`; None keeps its default.
        names = {name.removeprefix("--") for name in beam_flag_names()}
        names |= {action.dest for action in _make_beam_parser()._actions}
        for name in program_options:
            if name not in names:
                raise UsageError(f"beam_options: Beam has no option {name}{suggestion(str(name), names)}")
        options = _Options.from_dictionary(
            {name: value for name, value in program_options.items() if value is not None}
        )
    elif program_options is None or (isinstance(program_options, Sequence) and not isinstance(program_options, str)):
        words = list(map(str, program_options or ()))
        _, unknown = _make_beam_parser().parse_known_args(words)
        if unknown:
            raise UsageError(f"beam_options: Beam has no flag {unknown[0]}{suggestion(unknown[0], beam_flag_names())}")
        options = _Options(words)
    else:
        raise UsageError(
            f"beam_options: invalid (got {program_options!r}, expected PipelineOptions, a dict or a list of flags)."
        )
    if runner is not None:
        standard = options.view_as(StandardOptions)
        if standard.runner is not None:
            raise UsageError(f"runner={runner}: beam_options name a runner, too (got {standard.runner}). Omit one.")
        standard.runner = str(runner)
    _set_runner(options, workers)
    return options


def copy_pipeline_options(pipeline: Any) -> PipelineOptions:
    """Return a copy of the options of a program's pipeline, with the class of its runner.

    Raises:
        UsageError: `pipeline` is not a Beam pipeline.
    """
    if not isinstance(pipeline, beam.Pipeline):
        raise UsageError(f"pipeline: invalid (got {pipeline!r}, expected an apache_beam.Pipeline).")
    options = copy.deepcopy(pipeline.options)
    options.view_as(StandardOptions).runner = type(pipeline.runner).__name__
    return options


def _set_runner(options: PipelineOptions, workers: int) -> None:
    """Complete the name of the runner in options, by default the local one, and set its number of workers if there are several.

    Raises:
        UsageError: several workers are requested of a runner that is not local.
    """
    standard = options.view_as(StandardOptions)
    standard.runner = _find_runner_name(standard.runner)
    if workers > 1:
        if standard.runner != LOCAL_RUNNER:
            raise UsageError(
                f"--workers is for the local runner; {standard.runner} has different flags, see Beam's manual"
            )
        options.view_as(DirectOptions).direct_num_workers = workers


def _find_runner_name(name: str | None) -> str:
    """Return the class name of a runner that a flag names, in any case and with or without `Runner`, as Beam takes it."""
    runners = {runner.lower(): runner for runner in StandardOptions.KNOWN_RUNNER_NAMES}
    requested = name or LOCAL_RUNNER
    return runners.get(requested.lower()) or runners.get(f"{requested.lower()}runner") or requested


def new_pipeline(
    options: PipelineOptions, max_parts: int | None = None, runner: PipelineRunner | None = None
) -> beam.Pipeline:
    """Return an empty pipeline.

    Args:
        options: options of the runner.
        max_parts: maximum number of parts of the work, which limits the worker processes of the local runner; None if unknown.
        runner: the runner; None makes the runner that the options name.

    Raises:
        UsageError: the options name an unknown runner, or lack flags that the runner needs.
        MissingExtraError: the package of the runner is not installed.
    """
    workers = options.view_as(DirectOptions).direct_num_workers
    name = str(options.view_as(StandardOptions).runner)
    # Runners change the options of their pipeline, so it gets a copy.
    own_options = copy.deepcopy(options)
    if is_local(options):
        # Checking the types of all edges is a sixth of the CPU time of a small run; on other engines they are checked.
        own_options.view_as(TypeOptions).pipeline_type_check = False
    try:
        if runner is not None:
            return beam.Pipeline(runner=runner, options=own_options)
        if is_local(options) and workers > 1:
            direct = own_options.view_as(DirectOptions)
            direct.direct_num_workers = limit_workers(workers, max_parts)
            # Beam warns of its default, which LocalRunner does not use.
            direct.direct_running_mode = None
            return beam.Pipeline(runner=LocalRunner(), options=own_options)
        return beam.Pipeline(options=own_options)
    except ValueError as error:
        # Beam lists missing options one per line.
        raise UsageError(f"--runner={name}: {one_line(error)}.") from None
    except ImportError as error:
        if "dataflow" in name.lower():
            raise MissingExtraError(f"--runner={name}", "gcp") from None
        raise UsageError(_describe_unusable(name, error)) from None
    except (AttributeError, TypeError) as error:
        # Beam takes any name with a dot for the path of a class.
        if "." not in name:
            raise
        raise UsageError(_describe_unusable(name, error)) from None


@contextmanager
def temporary_pipeline(
    options: PipelineOptions, max_parts: int | None = None, runner: PipelineRunner | None = None
) -> Iterator[beam.Pipeline]:
    """Yield a new pipeline, and remove its folder of temporary files at the end; Beam does so only after a run.

    Args:
        options: options of the runner.
        max_parts: maximum number of parts of the work, which limits the worker processes of the local runner; None if unknown.
        runner: the runner; None makes the runner that the options name.

    Raises:
        UsageError: the options name an unknown runner, or lack flags that the runner needs.
        MissingExtraError: the package of the runner is not installed.
    """
    pipeline = new_pipeline(options, max_parts, runner)
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)


def _describe_unusable(name: str, error: Exception) -> str:
    return f"--runner={name}: {error}. Give the name of one of Beam's runners, or the full name of a class that is one."


def runner_name(options: PipelineOptions) -> str:
    """Return the class name of the runner that options name, without its module."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2]


def is_local(options: PipelineOptions) -> bool:
    """Return whether the local runner runs the pipeline, in this process and its children."""
    return str(options.view_as(StandardOptions).runner) == LOCAL_RUNNER


def is_in_process(runner: str) -> bool:
    """Return whether a runner works in the process that uses it, by its class name, with or without its module."""
    return runner.rpartition(".")[2] in _IN_PROCESS


def beam_flag_names() -> list[str]:
    """Return every flag that Beam knows, such as `--runner`."""
    return [name for action in _make_beam_parser()._actions for name in action.option_strings]


class _BeamParser(argparse.ArgumentParser):
    """Parser that raises a UsageError instead of printing all of Beam's flags and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. It is a flag of Apache Beam: see {MANUAL}.")


def _make_beam_parser() -> argparse.ArgumentParser:
    """Return a parser of every flag that Beam's own options declare.

    Beam has no public list. Its guide tells custom options to override `_add_argparse_args`; a test fails if Beam renames it.
    """
    parser = _BeamParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for options_class in PipelineOptions.__subclasses__():
        add_arguments = getattr(options_class, "_add_argparse_args", None)
        if add_arguments is not None:
            add_arguments(parser)
    return parser


@contextmanager
def quiet_beam() -> Iterator[None]:
    """Mute Beam's runners and the root logger below CRITICAL, in a command's process: Beam logs tracebacks of reported errors.

    After an error or Ctrl-C they stay muted: the process ends, and steps still at work in other threads fail until then.
    """
    # In a program, loggers belong to the program.
    if not owns_process():
        yield
        return
    # Beam also calls the functions of `logging`, which log to the root logger.
    loggers = [logging.getLogger(name) for name in ("apache_beam.runners", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
