"""`tpudata doctor`: readiness for a run."""

from tpudata.cli.doctor.command import run
from tpudata.cli.doctor.flags import new_parser

__all__ = ["new_parser", "run"]
