"""`python -m tpudata.train` is the same as `tpudata train`."""

import functools
import sys

from tpudata.console.process import run_command
from tpudata.train.command import run

if __name__ == "__main__":
    sys.exit(run_command(functools.partial(run, prog="python -m tpudata.train")))
