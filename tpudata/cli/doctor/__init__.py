"""`tpudata doctor`: readiness for a run."""

from tpudata.cli.doctor.command import run

__all__ = ["run"]
