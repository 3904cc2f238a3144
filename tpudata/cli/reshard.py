"""`tpudata reshard DIR...`: runs the Beam job that writes stored records into another dataset."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tpudata.console.loading import uncollected_loading
from tpudata.console.quiet import quiet_beam_loading


def run(argv: Sequence[str], prog: str = "tpudata reshard") -> int:
    """Run the Beam job and return its exit code; messages call the command `prog`."""
    with quiet_beam_loading(), uncollected_loading():
        job = importlib.import_module("beam_jobs.reshard")
    code: int = job.run(argv, prog)
    return code
