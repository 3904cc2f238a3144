"""`tpudata import DIR...`: `tpudata reshard` by the name that those look for who have TFRecords already."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.cli import reshard


def run(argv: Sequence[str]) -> int:
    """Run the Beam job and return its exit code."""
    return reshard.run(argv, "tpudata import")
