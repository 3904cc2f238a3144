"""`python -m tpudata.train` is the same as `tpudata train`."""

import sys

from tpudata.console.interrupts import end_on_interrupt

if __name__ == "__main__":
    end_on_interrupt()
    # Imported only now, so that Ctrl-C is handled before anything that takes time.
    from tpudata.console.process import run_module

    sys.exit(run_module("tpudata.train.command", "python -m tpudata.train"))
