"""The end of a command: its exit code, and one-line errors instead of tracebacks."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from tpudata.console.interrupts import INTERRUPTED, MESSAGE, is_default_or_ours, loading, was_interrupted, working
from tpudata.console.machine_errors import machine_problem
from tpudata.errors import TpudataError

# Exit codes that a shell reports for a program that SIGPIPE or SIGTERM ended.
BROKEN_PIPE = 141
TERMINATED = 143
# After a signal: time for the program to end by itself, and then time to remove its temporary files for it.
_GRACE_SECONDS = 4.0
_TIDY_SECONDS = 3.0
# Whether this process is one of tpudata's: `run_command` runs its command line, or it ends with the process that started it.
_is_ours = False


# More processes than cores help if each waits for an object store; beyond this they only take memory, 100 MB or more each.
_WORKERS_PER_CORE = 4
_log = logging.getLogger("tpudata")


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, raised like Ctrl-C's KeyboardInterrupt."""


def run_command(function: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the data or the run failed, 2 wrong usage.

    A TpudataError is printed on stderr as `tpudata: error: ...`. Any other exception is a fault in a program, ours or the
    user's, and keeps its traceback. If stdout is closed or fails (a full disk), one line on stderr reports it.

    Args:
        function: the command, which takes the arguments and returns its exit code.
        argv: the arguments; None for those of this process.
    """
    # sys.stdout is None if the descriptor is closed (`>&-`). Checked first, so that nothing is done that cannot be reported.
    if sys.stdout is None:
        print("tpudata: error: standard output is closed. Send it to a file or to /dev/null.", file=sys.stderr)
        return TpudataError.exit_code
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A class or file name may contain characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    global _is_ours
    try:
        _is_ours = argv is None
        code = _run_function(function, sys.argv[1:] if argv is None else argv)
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
        _is_ours = False
    return code


def run_module(name: str, prog: str) -> int:
    """Run a command that is a module with `run(argv, prog)`, which is only imported here; return its exit code.

    Args:
        name: full name of the module.
        prog: name of the command, for messages.
    """

    def run(argv: Sequence[str]) -> int:
        with loading():
            command = importlib.import_module(name)
        code: int = command.run(argv, prog)
        return code

    return run_command(run)


def owns_process() -> bool:
    """Return whether this process only runs one of tpudata's commands, or a part of one, and ends with it."""
    return _is_ours


def _run_function(function: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    # An in-process caller keeps its handlers, and another thread may set none.
    is_whole = _is_ours and threading.current_thread() is threading.main_thread()
    try:
        with working() if is_whole else contextlib.nullcontext():
            return function(argv)
    except TpudataError as error:
        if is_whole and was_interrupted():
            return _report_interrupt(KeyboardInterrupt())
        # One line, even if the name of a file contains line ends.
        line = str(error).replace("\r", "\\r").replace("\n", "\\n")
        print(f"tpudata: error: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return _report_interrupt(error)
    except SystemExit as done:
        # argparse exits this way after --help.
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Exception as error:
        # Libraries wrap an interrupt that meets them at work.
        if is_whole and was_interrupted():
            return _report_interrupt(KeyboardInterrupt())
        problem = machine_problem(error)
        if not problem:
            raise
        print(f"tpudata: error: {problem}", file=sys.stderr)
        return TpudataError.exit_code


def _report_interrupt(error: KeyboardInterrupt) -> int:
    """Print the message for an interrupt; return the exit code."""
    code, words = _describe_interrupt(error)
    print(words, file=sys.stderr)
    return code


def end_with(lifeline: int) -> None:
    """End this process, which works for a command, when its parent closes its end of a pipe, or dies.

    Args:
        lifeline: descriptor of the pipe's reading end; nothing is ever written to it.
    """
    global _is_ours
    _is_ours = True

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(TpudataError.exit_code)

    threading.Thread(target=watch, name="tpudata-lifeline", daemon=True).start()


def most_workers() -> int:
    """Return the largest number of worker processes that a command starts on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _WORKERS_PER_CORE * cores


def useful_workers(workers: int, parts: int | None) -> int:
    """Return the number of worker processes to start, and log a warning if it is lower than requested.

    Args:
        workers: the requested number.
        parts: the largest number of parts that the work has, or None if it is unknown.
    """
    by_cores = most_workers()
    useful = max(1, min(workers, by_cores, workers if parts is None else parts))
    if useful < workers:
        reason = f"{_WORKERS_PER_CORE} for each core" if useful == by_cores else "as many as the work has parts"
        _log.warning("--workers %d: %d are started, %s.", workers, useful, reason)
    return useful


def _describe_interrupt(error: KeyboardInterrupt) -> tuple[int, str]:
    """Return the exit code and the message for an interrupt."""
    if isinstance(error, Terminated):
        return TERMINATED, "tpudata: ended by SIGTERM"
    return INTERRUPTED, MESSAGE


@contextlib.contextmanager
def interruptible(stop: Callable[[], None], tidy: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the context's body soon, even while it waits.

    Both raise in the main thread. If this process runs one of tpudata's commands, a second signal is ignored, and the process is
    ended by force if a thread or a library still keeps it waiting a few seconds later. Outside the main thread, and for a signal
    whose handler the program has set, nothing changes.

    Args:
        stop: ends other processes that work for this one; called at once, in another thread.
        tidy: removes temporary files; called in another thread, and only if the process is ended by force.

    Raises:
        Terminated: SIGTERM came.
        KeyboardInterrupt: Ctrl-C came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts(stop, tidy)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    is_free = {
        signal.SIGTERM: before[signal.SIGTERM] is signal.SIG_DFL,
        signal.SIGINT: is_default_or_ours(before[signal.SIGINT]),
    }
    changed = [number for number in before if is_free[number]]
    for number in changed:
        signal.signal(number, interrupts.receive)
    try:
        yield
    except BaseException as error:
        if interrupts.received in (None, error):
            raise
        # Frameworks wrap an interrupt that meets a running step, and fail because of a worker that it ended.
        raise interrupts.received from error
    finally:
        interrupts.leave()
        for number in changed:
            # Do not interrupt a process that is ending.
            is_ending = interrupts.is_ours and interrupts.received is not None
            signal.signal(number, signal.SIG_IGN if is_ending else before[number])


class _Interrupts:
    """Signals, and the thread that acts on them: a handler may interrupt the main thread while that holds any lock."""

    def __init__(self, stop: Callable[[], None], tidy: Callable[[], None]) -> None:
        self.received: KeyboardInterrupt | None = None
        self.is_ours = _is_ours
        self._stop, self._tidy = stop, tidy
        self._is_left = False
        self._has_stopped = threading.Event()
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="tpudata-interrupts", daemon=True)
        self._thread.start()

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        del frame
        if self.received is None:
            self.received = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
            os.write(self._writer, b"!")
            raise self.received
        if not self.is_ours:
            raise KeyboardInterrupt

    def leave(self) -> None:
        """Note that the context's body has ended; only the end of the process is still waited for."""
        self._is_left = True
        if self.received is not None:
            self._has_stopped.wait(_TIDY_SECONDS)
        else:
            os.close(self._writer)
            self._thread.join()
            os.close(self._reader)

    def _watch(self) -> None:
        if not os.read(self._reader, 1):
            return
        assert self.received is not None
        self._stop()
        self._has_stopped.set()
        if not self.is_ours:
            return
        time.sleep(_GRACE_SECONDS)
        code, words = _describe_interrupt(self.received)
        if not self._is_left:
            tidying = threading.Thread(target=self._tidy, daemon=True)
            tidying.start()
            tidying.join(_TIDY_SECONDS)
            with contextlib.suppress(OSError):
                os.write(2, f"{words}\n".encode())
        os._exit(code)


def _stdout_fails() -> bool:
    """Return whether an OSError came from stdout: write a line to it, since an unbuffered stream has nothing to flush."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Discard stdout's buffer, which the interpreter would otherwise try to write again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
