"""`tpudata convert KIND`: runs the Beam job that converts this kind of input."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from tpudata.console.flags import FlagParser, end_sentence
from tpudata.console.loading import loading_without_gc
from tpudata.console.nearest import suggestion
from tpudata.console.quiet import quiet_beam_loading
from tpudata.errors import UsageError

# Kinds of input and their help. The job of a kind is `beam_jobs.KIND`.
KINDS = {
    "images": "folders of classes, CSV and JSONL lists, patterns, tars, zips, Parquet, IDX pairs, ImageNet; local or gs://",
    "text": "lines, paragraphs, whole files, JSONL, CSV, TSV, Parquet, compressed or not; local or gs://",
}


def run(argv: Sequence[str]) -> int:
    """Run the Beam job of the kind that `argv` begins with, and return its exit code; UsageError if the kind is unknown."""
    if not argv:
        print(_format_help(), file=sys.stderr)
        return UsageError.exit_code
    kind, arguments = argv[0], argv[1:]
    if kind in ("-h", "--help"):
        print(_format_help())
        return 0
    if kind not in KINDS:
        unknown = end_sentence(f"tpudata convert: unknown kind of input {kind!r}{suggestion(kind, KINDS)}")
        raise UsageError(f"{unknown} Known: {', '.join(KINDS)}. The kind comes first. See: tpudata convert --help")
    code: int = _import_job(kind).run(arguments)
    return code


def new_parser(kind: str) -> FlagParser:
    """Return the parser of the flags for a kind of input."""
    parser: FlagParser = _import_job(kind).new_parser(f"tpudata convert {kind}")
    return parser


def _import_job(kind: str) -> ModuleType:
    """Import and return the module of the Beam job of a kind of input.

    It imports Beam. During the import, some of Beam's warnings are dropped, and the garbage collector, which would slow it, is off.
    """
    with quiet_beam_loading(), loading_without_gc():
        return importlib.import_module(f"beam_jobs.{kind}")


def _format_help() -> str:
    """Return the usage, and all kinds of input with their summaries."""
    kinds = "\n".join(f"  {kind:<6}  {summary}" for kind, summary in KINDS.items())
    return (
        f"usage: tpudata convert KIND --input SRC --output DIR [FLAGS]\n\nkinds of input:\n{kinds}\n\n`tpudata convert"
        " KIND --help` lists the flags of a kind."
    )
