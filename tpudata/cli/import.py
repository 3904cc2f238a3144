"""`tpudata import DIR...`: `tpudata reshard`, under the name that users with existing TFRecords look for."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.cli import reshard
from tpudata.console.flags import FlagParser

_NAME = "tpudata import"


def run(argv: Sequence[str]) -> int:
    """Run the Beam job and return its exit code."""
    return reshard.run(argv, _NAME)


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    return reshard.new_parser(_NAME)
