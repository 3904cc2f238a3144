"""Errors that the machine causes, in any part of a program: memory that ran out, disks that fail, a deleted working directory."""

from __future__ import annotations

import errno
import os
import re

from tpudata.error_text.own import iterate_causes

DISK_FIX = "The disk or the connection to it fails: see the system's log (`dmesg`)."
_DISK_ERRORS = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENOTCONN, errno.EREMOTEIO)
_MEMORY_FIX = "Use a machine with more memory; fewer --workers, or a smaller --batch-size, take less."
# Messages of Python, numpy, Arrow, the library loader and TensorFlow, as the last line of a traceback.
_NO_MEMORY = re.compile(
    r"^(?:[\w.]*MemoryError\b[^\n]*|OSError: \[Errno 12\][^\n]*|RuntimeError: can't start new thread[^\n]*"
    r"|ImportError: [^\n]*(?:failed to map segment|[Cc]annot allocate memory)[^\n]*"
    r"|[\w.]*ResourceExhaustedError: [^\n]*\bOOM\b[^\n]*)",
    re.MULTILINE,
)
_DISK_FAILED = re.compile(
    rf"^OSError: \[Errno (?:{'|'.join(map(str, _DISK_ERRORS))})\] ([^\n]*?): '([^\n]*?)'(?: -> [^\n]*)?$", re.MULTILINE
)
# The error of `os.getcwd` names no file.
_NO_WORKING_DIRECTORY = re.compile(r"^FileNotFoundError: \[Errno 2\] [^\n:]*$", re.MULTILINE)
# Beam ends the message of an error with the step that it met.
_BEAM_STEP = re.compile(r" \[while running [^\n]*")


def describe_machine_error(error: BaseException) -> str:
    """Return the message for an error that the machine causes, in one line; empty for other errors.

    Args:
        error: an exception; the exceptions that it was raised from or during also count.
    """
    for cause in iterate_causes(error):
        text = f"{type(cause).__name__}: {cause}"
        problem = describe_machine_error_text(text)
        if problem:
            return problem
        # A subclass may have a name that the pattern does not know.
        if isinstance(cause, MemoryError):
            return _describe_memory_error(text)
    return ""


def describe_machine_error_text(text: str) -> str:
    """Return the message for an error that the machine causes, given the text of its traceback; empty for other errors."""
    # Without the step that Beam adds to an error, which would be part of the reason or hide the end of the path.
    traceback = _BEAM_STEP.sub("", text)
    if match := _NO_MEMORY.search(traceback):
        return _describe_memory_error(match[0])
    if match := _DISK_FAILED.search(traceback):
        reason, path = match.groups()
        return f"{path} could not be used: {reason}. {DISK_FIX}"
    if _NO_WORKING_DIRECTORY.search(traceback) and not _has_working_directory():
        return "the working directory does not exist any more. Change to another folder (`cd`)."
    return ""


def _has_working_directory() -> bool:
    """Return whether the working directory of this process exists."""
    try:
        os.getcwd()  # noqa: PTH109  (the call itself is tested)
    except FileNotFoundError:
        return False
    return True


def _describe_memory_error(reason: str) -> str:
    """Return the message for memory that ran out; `reason` is the class and the message of the error."""
    reason = reason.removesuffix(": ").rstrip(". ")
    return f"memory ran out ({reason}{_describe_memory_limit()}). {_MEMORY_FIX}"


def _describe_memory_limit() -> str:
    """Return the limit of this process's memory as the end of a phrase; empty without a limit."""
    try:
        import resource
    except ImportError:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "" if limit == resource.RLIM_INFINITY else f"; ulimit -v allows {limit // 1024:,} kB"
