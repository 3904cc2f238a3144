"""`tpudata bench`: the speed of feeding a dataset."""

from tpudata.cli.bench.command import run
from tpudata.cli.bench.flags import new_parser

__all__ = ["new_parser", "run"]
