"""`tpudata reshard DIR...`: runs the Beam job that writes stored records into another dataset."""

from __future__ import annotations

import importlib
from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """Run the Beam job and return its exit code."""
    code: int = importlib.import_module("beam_jobs.reshard").run(argv)
    return code
