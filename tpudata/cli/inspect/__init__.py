"""`tpudata inspect`: what is in a dataset."""

from tpudata.cli.inspect.command import run

__all__ = ["run"]
