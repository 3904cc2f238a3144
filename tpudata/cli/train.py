"""`tpudata train`: the training entry point, the same as `python -m tpudata.train`."""

from tpudata.train.command import run
from tpudata.train.options.flags import new_parser

__all__ = ["new_parser", "run"]
