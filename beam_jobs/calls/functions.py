"""The conversions as functions. None of them loads Beam before it is called."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from beam_jobs.calls.beam_logging import without_beam_handler
from beam_jobs.calls.keywords import ImageKeywords, ReshardKeywords, TextKeywords
from beam_jobs.calls.plan import ConversionPlan
from tpudata.errors import MissingExtraError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tpudata.format import Manifest

# Names that signatures show; docs/reference/api/types.md explains them.
AnyPath: TypeAlias = "str | os.PathLike[str]"
Outcome: TypeAlias = "Manifest | ConversionPlan | None"


@overload
def convert_images(
    input: AnyPath,
    output: AnyPath,
    *,
    dry_run: Literal[False] = False,
    detach: Literal[False] = False,
    **options: Unpack[ImageKeywords],
) -> Manifest: ...
@overload
def convert_images(
    input: AnyPath, output: AnyPath, *, dry_run: Literal[True], detach: bool = False, **options: Unpack[ImageKeywords]
) -> ConversionPlan: ...
@overload
def convert_images(
    input: AnyPath, output: AnyPath, *, dry_run: bool = False, detach: bool = False, **options: Unpack[ImageKeywords]
) -> Outcome: ...
def convert_images(
    input: AnyPath, output: AnyPath, *, dry_run: bool = False, detach: bool = False, **options: Unpack[ImageKeywords]
) -> Outcome:
    """Convert images into a dataset, as `tpudata convert images` does; return its manifest.

    The dataset has the same bytes as that of the command. Nothing is printed but the bar of `progress`, and the process is not
    changed: signals, loggers, warnings and standard error stay as they are. Noteworthy facts about the input are in
    `manifest.warnings`, and are logged as warnings of the logger `tpudata`. The conversion is a Beam pipeline that has ended when
    the call returns, unless `detach` is True; it uses the runner and the options of `pipeline`, if that is passed, and adds no
    steps to it.

    Args:
        input: what to convert, local or gs://: a folder of classes, a list, tars, zips, Parquet, IDX pairs or a pattern.
        output: folder of the dataset, local or gs://; new or empty, unless `append`, `resume` or `overwrite` is passed.
        dry_run: whether to return a plan, and write nothing.
        detach: whether to return None when the job is submitted, for runners whose jobs outlive this process.
        **options: `pipeline`, `runner`, `beam_options`, `progress`, and the flags of the command, with underscores:
            `tpudata convert images --help` describes them, and `beam_jobs.calls.ImageKeywords` has their names and types.

    Returns:
        The manifest of the complete dataset; the plan with `dry_run`, None with `detach`.

    Raises:
        TpudataError: the command would fail: UsageError, SourceError, BadRecordError, OutputError and others. The message names the
            keyword.
        MissingExtraError: Apache Beam is not installed.
        TypeError: there is no option of that name.
    """
    return _call(
        "convert_images",
        _format_paths(input, output),
        ImageKeywords,
        options,
        module_name="images",
        dry_run=dry_run,
        detach=detach,
    )


@overload
def convert_text(
    input: AnyPath,
    output: AnyPath,
    *,
    dry_run: Literal[False] = False,
    detach: Literal[False] = False,
    **options: Unpack[TextKeywords],
) -> Manifest: ...
@overload
def convert_text(
    input: AnyPath, output: AnyPath, *, dry_run: Literal[True], detach: bool = False, **options: Unpack[TextKeywords]
) -> ConversionPlan: ...
@overload
def convert_text(
    input: AnyPath, output: AnyPath, *, dry_run: bool = False, detach: bool = False, **options: Unpack[TextKeywords]
) -> Outcome: ...
def convert_text(
    input: AnyPath, output: AnyPath, *, dry_run: bool = False, detach: bool = False, **options: Unpack[TextKeywords]
) -> Outcome:
    """Convert text into a dataset, as `tpudata convert text` does; return its manifest. See `convert_images`.

    Args:
        input: what to convert, local or gs://: a file of text, a folder of such files, or a pattern.
        output: folder of the dataset, local or gs://; new or empty, unless `append`, `resume` or `overwrite` is passed.
        dry_run: whether to return a plan, and write nothing.
        detach: whether to return None when the job is submitted, for runners whose jobs outlive this process.
        **options: `pipeline`, `runner`, `beam_options`, `progress`, and the flags of the command, with underscores:
            `tpudata convert text --help` describes them, and `beam_jobs.calls.TextKeywords` has their names and types.

    Returns:
        The manifest of the complete dataset; the plan with `dry_run`, None with `detach`.

    Raises:
        TpudataError: the command would fail. The message names the keyword.
        MissingExtraError: Apache Beam is not installed.
        TypeError: there is no option of that name.
    """
    return _call(
        "convert_text",
        _format_paths(input, output),
        TextKeywords,
        options,
        module_name="text",
        dry_run=dry_run,
        detach=detach,
    )


@overload
def reshard(
    input: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    dry_run: Literal[False] = False,
    detach: Literal[False] = False,
    **options: Unpack[ReshardKeywords],
) -> Manifest: ...
@overload
def reshard(
    input: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    dry_run: Literal[True],
    detach: bool = False,
    **options: Unpack[ReshardKeywords],
) -> ConversionPlan: ...
@overload
def reshard(
    input: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    dry_run: bool = False,
    detach: bool = False,
    **options: Unpack[ReshardKeywords],
) -> Outcome: ...
def reshard(
    input: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    dry_run: bool = False,
    detach: bool = False,
    **options: Unpack[ReshardKeywords],
) -> Outcome:
    """Write datasets or TFRecord files as one dataset, as `tpudata reshard` does; return its manifest. See `convert_images`.

    Args:
        input: a dataset, a TFRecord file, or a folder or pattern of TFRecord files; a sequence of these is merged.
        output: folder of the dataset, local or gs://; new or empty, unless `resume` or `overwrite` is passed.
        dry_run: whether to return a plan, and write nothing.
        detach: whether to return None when the job is submitted, for runners whose jobs outlive this process.
        **options: `pipeline`, `runner`, `beam_options`, `progress`, and the flags of the command, with underscores:
            `tpudata reshard --help` describes them, and `beam_jobs.calls.ReshardKeywords` has their names and types.

    Returns:
        The manifest of the complete dataset; the plan with `dry_run`, None with `detach`.

    Raises:
        TpudataError: the command would fail. The message names the keyword.
        MissingExtraError: Apache Beam is not installed.
        TypeError: there is no option of that name.
    """
    paths = [input] if isinstance(input, (str, os.PathLike)) else list(input)
    words = [*map(_format_positional, paths), f"--output={os.fsdecode(output)}"]
    return _call("reshard", words, ReshardKeywords, options, module_name="reshard", dry_run=dry_run, detach=detach)


def _call(
    name: str,
    paths: Sequence[str],
    keywords_type: type,
    options: Mapping[str, Any],
    *,
    module_name: str,
    dry_run: bool,
    detach: bool,
) -> Outcome:
    """Run or plan a conversion without Beam's log handler; see `convert_images`.

    Args:
        name: name of the function, in `tpudata`.
        paths: the input and the output as words of the command line.
        keywords_type: TypedDict of the function's options.
        options: options of the function by name, without `dry_run` and `detach`.
        module_name: name of the command's module, in `beam_jobs`.
        dry_run: whether to return a plan.
        detach: whether to return None when the job is submitted.

    Raises:
        MissingExtraError: Beam is not installed.
    """
    names = (*keywords_type.__annotations__, "dry_run", "detach")
    with without_beam_handler:
        try:
            call = importlib.import_module("beam_jobs.calls.call")
            job = importlib.import_module(f"beam_jobs.{module_name}")
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != "apache_beam":
                raise
            raise MissingExtraError(f"tpudata.{name}", extra="") from error
        outcome: Outcome = call.call_job(
            f"tpudata.{name}", job, paths, names, {**options, "dry_run": dry_run, "detach": detach}
        )
    return outcome


def _format_paths(input: AnyPath, output: AnyPath) -> list[str]:
    return [f"--input={os.fsdecode(input)}", f"--output={os.fsdecode(output)}"]


def _format_positional(path: AnyPath) -> str:
    """Return a path as a word of the command line that is not taken for a flag."""
    text = os.fsdecode(path)
    return f"./{text}" if text.startswith("-") else text
