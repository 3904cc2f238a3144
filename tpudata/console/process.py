"""Processes of a command: exit codes, one-line errors instead of tracebacks, and the number of workers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from tpudata.console.interrupts import (
    interruptible_loading,
    interruptible_work,
    owns_process,
    set_owns_process,
    was_interrupted,
)
from tpudata.console.lifeline import watch
from tpudata.console.machine_errors import describe_machine_error
from tpudata.console.signals import describe_interrupt
from tpudata.errors import TpudataError

# Exit code that a shell reports for a program that SIGPIPE ended.
BROKEN_PIPE = 141
# More processes than cores help if each waits for an object store; beyond this number they only take memory, 100 MB or more each.
_WORKERS_PER_CORE = 4
_log = logging.getLogger("tpudata")


def run_command(function: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the data or the run failed, 2 wrong usage, or that of an interrupt.

    A TpudataError, and an error that the machine causes, such as too little memory, is printed on stderr as `tpudata: error: ...`.
    Any other exception is a fault in a program, ours or the user's, and keeps its traceback. If stdout is closed or fails (a full
    disk), one line on stderr reports it; if the reader of a pipe, such as `head`, has ended, no line does, and the exit code is
    141. A closed stderr becomes /dev/null.

    Args:
        function: the command, which takes the arguments and returns its exit code.
        argv: the arguments; None for the arguments of this process.
    """
    if sys.stderr is None:
        sys.stderr = _open_null_stderr()
    # sys.stdout is None if the descriptor is closed (`>&-`). It is checked first, so that nothing is done that cannot be reported.
    if sys.stdout is None:
        print("tpudata: error: standard output is closed. Send it to a file or to /dev/null.", file=sys.stderr)
        return TpudataError.exit_code
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A class or file name may contain characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # With arguments from a caller, the process belongs to the caller's program.
        set_owns_process(is_owned=argv is None)
        code = _run_and_report(function, sys.argv[1:] if argv is None else argv)
        # Flush now, so that a closed pipe raises here and not at the interpreter's exit.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:
        # An error of opening a file names the file; an error of writing does not.
        if error.filename is not None or not _stdout_fails():
            raise
        _drop_stdout()
        reason = error.strerror or str(error)
        print(f"tpudata: error: standard output could not be written: {reason}.", file=sys.stderr)
        return TpudataError.exit_code
    finally:
        set_owns_process(is_owned=False)
    return code


def _open_null_stderr() -> TextIO:
    """Return a stream to /dev/null, which is also descriptor 2 if that is closed.

    The next file to be opened would get the number 2, and with it whatever libraries print to stderr.
    """
    null = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)
    try:
        os.fstat(2)
    except OSError:
        os.dup2(null.fileno(), 2)
    # For processes that this one starts.
    os.set_inheritable(2, True)
    return null


def run_module(name: str, prog: str) -> int:
    """Run a command that is a module with `run(argv, prog)`, which is only imported here; return its exit code.

    Args:
        name: full name of the module.
        prog: name of the command, for messages.
    """

    def run(argv: Sequence[str]) -> int:
        with interruptible_loading():
            command = importlib.import_module(name)
        code: int = command.run(argv, prog)
        return code

    return run_command(run)


def _run_and_report(function: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; report interrupts and errors of tpudata and the machine in one line."""
    # A program that calls the command keeps its handlers, and only the main thread may set any.
    handles_interrupts = owns_process() and threading.current_thread() is threading.main_thread()
    try:
        with interruptible_work() if handles_interrupts else contextlib.nullcontext():
            return function(argv)
    except TpudataError as error:
        # The interrupt may have become this error.
        if handles_interrupts and was_interrupted():
            return _report_interrupt(KeyboardInterrupt())
        # One line, even if the name of a file contains line ends.
        line = str(error).replace("\r", "\\r").replace("\n", "\\n")
        print(f"tpudata: error: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return _report_interrupt(error)
    except SystemExit as request:
        # argparse exits this way after --help. As in Python, None is 0, and a message is 1.
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    except Exception as error:
        # Libraries wrap an interrupt that meets them at work.
        if handles_interrupts and was_interrupted():
            return _report_interrupt(KeyboardInterrupt())
        problem = describe_machine_error(error)
        if not problem:
            raise
        print(f"tpudata: error: {problem}", file=sys.stderr)
        return TpudataError.exit_code


def _report_interrupt(error: KeyboardInterrupt) -> int:
    """Print the message for an interrupt; return the exit code."""
    code, message = describe_interrupt(error)
    print(message, file=sys.stderr)
    return code


def end_with_parent(lifeline: int) -> None:
    """Let this process, which works for a command, end with its parent; from now on, `owns_process` is true.

    Args:
        lifeline: descriptor of the reading end of the parent's lifeline.
    """
    set_owns_process(is_owned=True)
    watch(lifeline, functools.partial(os._exit, TpudataError.exit_code))


def compute_max_workers() -> int:
    """Return the maximum number of worker processes that a command starts on this machine."""
    # Count only the cores that this process may use, if the system has the function for it.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _WORKERS_PER_CORE * cores


def limit_workers(workers: int, max_parts: int | None) -> int:
    """Return the number of worker processes to start; log a warning if it is lower than requested.

    Args:
        workers: the requested number.
        max_parts: the maximum number of parts that the work has; None if it is unknown.
    """
    max_by_cores = compute_max_workers()
    max_by_parts = workers if max_parts is None else max_parts
    # At least one, even for work without parts.
    count = max(1, min(workers, max_by_cores, max_by_parts))
    if count < workers:
        reason = f"{_WORKERS_PER_CORE} for each core" if count == max_by_cores else "as many as the work has parts"
        _log.warning("--workers %d: %d are started, %s.", workers, count, reason)
    return count


def _stdout_fails() -> bool:
    """Return whether stdout fails, by printing an empty line: an unbuffered stream has nothing that could be flushed."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Send stdout's buffer to /dev/null: otherwise the interpreter would try to write it again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
