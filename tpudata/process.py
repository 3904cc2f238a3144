"""How a command ends: its exit code, and its errors in words instead of tracebacks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from tpudata.errors import TpudataError

# What a shell reports for a program that was ended by SIGINT and by SIGPIPE.
INTERRUPTED = 130
BROKEN_PIPE = 141


def run_command(function: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 done, 1 the data or the run failed, 2 wrong usage.

    A TpudataError is printed on stderr as `tpudata: error: ...`. Any other exception is a fault in a program, ours or the
    user's, and keeps its traceback.

    Args:
        function: the command: takes the arguments, returns its exit code.
        argv: the arguments; those of this process where None.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A class or file name may hold characters that the terminal's encoding does not have.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = function(sys.argv[1:] if argv is None else argv)
        # What is still buffered meets a closed pipe here, and not at the interpreter's exit where nobody can catch it.
        sys.stdout.flush()
    except TpudataError as error:
        print(f"tpudata: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("tpudata: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Nothing more can be written: not even what stdout still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as done:
        # argparse leaves this way after --help.
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return code
