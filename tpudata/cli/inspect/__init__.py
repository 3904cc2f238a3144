"""`tpudata inspect`: what is in a dataset."""

from tpudata.cli.inspect.command import new_parser, run

__all__ = ["new_parser", "run"]
