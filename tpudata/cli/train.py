"""`tpudata train`: the training entry point, the same as `python -m tpudata.train`."""

from tpudata.train.command import run

__all__ = ["run"]
