"""`tpudata reshard DIR...`: runs the Beam job that writes stored records into another dataset."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from tpudata.console.flags import FlagParser
from tpudata.console.loading import loading_without_gc
from tpudata.console.quiet import quiet_beam_loading


def run(argv: Sequence[str], prog: str = "tpudata reshard") -> int:
    """Run the Beam job and return its exit code.

    Args:
        argv: the words after the command.
        prog: the command as the user types it, for messages.
    """
    code: int = _import_job().run(argv, prog)
    return code


def new_parser(prog: str = "tpudata reshard") -> FlagParser:
    """Return the parser of the flags, for the command that the user types as `prog`."""
    parser: FlagParser = _import_job().new_parser(prog)
    return parser


def _import_job() -> ModuleType:
    # The module imports Beam: drop some of its warnings, and switch the garbage collector off, which would slow the import.
    with quiet_beam_loading(), loading_without_gc():
        return importlib.import_module("beam_jobs.reshard")
