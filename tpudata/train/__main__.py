"""`python -m tpudata.train` is the same as `tpudata train`."""

import functools
import sys

from tpudata.console.interrupts import end_on_interrupt

if __name__ == "__main__":
    end_on_interrupt()
    # Only now, so that Ctrl-C is handled before anything that takes time.
    from tpudata.console.process import run_command
    from tpudata.train.command import run

    sys.exit(run_command(functools.partial(run, prog="python -m tpudata.train")))
