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
    user's, and keeps its traceback. Where stdout is closed or takes no more (a full disk), that is said on stderr in a line.

    Args:
        function: the command: takes the arguments, returns its exit code.
        argv: the arguments; those of this process where None.
    """
    # Python leaves None where the descriptor is closed (`>&-`). Before the command, so that nothing is done that cannot be told.
    if sys.stdout is None:
        print("tpudata: error: standard output is closed. Send it to a file or to /dev/null.", file=sys.stderr)
        return TpudataError.exit_code
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A class or file name may hold characters that the terminal's encoding does not have.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _outcome(function, sys.argv[1:] if argv is None else argv)
        # What is still buffered meets a closed pipe here, and not at the interpreter's exit where nobody can catch it.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:
        # The error of a file that is opened names it; that of a write does not.
        if error.filename is not None or not _stdout_fails():
            raise
        _drop_stdout()
        reason = error.strerror or str(error)
        print(f"tpudata: error: standard output could not be written: {reason}.", file=sys.stderr)
        return TpudataError.exit_code
    return code


def _outcome(function: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    try:
        return function(argv)
    except TpudataError as error:
        print(f"tpudata: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("tpudata: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as done:
        # argparse leaves this way after --help.
        return done.code if isinstance(done.code, int) else int(done.code is not None)


def _stdout_fails() -> bool:
    """Whether it was stdout that an OSError came from. Tried with a line, as an unbuffered stream keeps nothing to try again."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Lets go of what stdout still holds, which the interpreter's exit would try to write once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
