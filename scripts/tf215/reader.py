"""The program of scripts/reader_tf215."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle import make_environment

ROOT = Path(__file__).resolve().parents[2]
# Packages for our reader, without packages that only other parts of tpudata need.
PACKAGES = ["tensorflow-cpu==2.15.1", "google-crc32c"]


def main() -> int:
    """Feed the original estimator and print a table; return 1 if a number differs."""
    parser = argparse.ArgumentParser(prog="scripts/reader_tf215", description=main.__doc__)
    parser.add_argument("--venvs", help="keep the virtual environment in this folder, and use an existing one")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpudata-reader-") as temporary:
        python = make_environment(Path(flags.venvs or temporary).resolve() / "reader", PACKAGES)
        log = Path(temporary, "log")
        with log.open("w") as file:
            process = subprocess.run(
                [python, str(ROOT / "scripts" / "tf215" / "reader_programs.py"), temporary],
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
                stderr=file,
            )
        # The log is shown only after a failure, since TensorFlow writes many warnings.
        if process.returncode:
            print(log.read_text(), file=sys.stderr)
    return int(process.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
