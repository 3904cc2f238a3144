"""Wrapper for an engine's server, so that the server ends with the process that started it.

`python -m beam_jobs.run.supervised DESCRIPTOR COMMAND...` runs a command in a separate session, where no Ctrl-C of a terminal
reaches it, and kills it when the lifeline with this descriptor is cut.
"""

import signal
import subprocess
import sys

from tpudata.console.lifeline import watch


def main() -> int:
    """Run the command of the arguments; return its exit code."""
    # A Ctrl-C is for the process that started this one: the command ends with that process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    watch(int(sys.argv[1]), process.kill)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
