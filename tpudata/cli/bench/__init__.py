"""`tpudata bench`: the speed of feeding a dataset."""

from tpudata.cli.bench.command import run

__all__ = ["run"]
