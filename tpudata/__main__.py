"""`python -m tpudata` is the `tpudata` command."""

import sys

from tpudata.cli import main

if __name__ == "__main__":
    sys.exit(main())
