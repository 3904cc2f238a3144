"""Errors that the machine is to blame for, whatever they met: memory that ran out, and disks that fail."""

from __future__ import annotations

import errno
import re

from tpudata.error_text.own import iterate_causes

DISK_FIX = "The disk or the connection to it fails: see the system's log (`dmesg`)."
_DISK = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENOTCONN, errno.EREMOTEIO)
_ADVICE = "Use a machine with more memory; fewer --workers, or a smaller --batch-size, take less."
# Messages of Python, numpy, Arrow, the library loader and TensorFlow, as the last line of a traceback.
_NO_MEMORY = re.compile(
    r"^(?:[\w.]*MemoryError\b[^\n]*|OSError: \[Errno 12\][^\n]*|RuntimeError: can't start new thread[^\n]*"
    r"|ImportError: [^\n]*(?:failed to map segment|[Cc]annot allocate memory)[^\n]*"
    r"|[\w.]*ResourceExhaustedError: [^\n]*\bOOM\b[^\n]*)",
    re.MULTILINE,
)
_DISK_FAILED = re.compile(
    rf"^OSError: \[Errno (?:{'|'.join(map(str, _DISK))})\] ([^\n]*?): '([^\n]*?)'(?: -> [^\n]*)?$", re.MULTILINE
)
# End of the text of an error in a step of Beam.
_STEP = re.compile(r" \[while running [^\n]*")


def describe_machine_error(error: BaseException) -> str:
    """Return the message for an error that the machine is to blame for, in one line; empty for all others.

    Args:
        error: an exception; those that it was raised from count, too.
    """
    for cause in iterate_causes(error):
        problem = describe_machine_error_text(f"{type(cause).__name__}: {cause}")
        if problem:
            return problem
        if isinstance(cause, MemoryError):
            return _describe_memory_error(f"{type(cause).__name__}: {cause}")
    return ""


def describe_machine_error_text(text: str) -> str:
    """Return the message for the text of a traceback, as `describe_machine_error` does."""
    plain = _STEP.sub("", text)
    if match := _NO_MEMORY.search(plain):
        return _describe_memory_error(match[0])
    if match := _DISK_FAILED.search(plain):
        reason, path = match.groups()
        return f"{path} could not be used: {reason}. {DISK_FIX}"
    return ""


def _describe_memory_error(reason: str) -> str:
    reason = reason.removesuffix(": ").rstrip(". ")
    return f"memory ran out ({reason}{_describe_limit()}). {_ADVICE}"


def _describe_limit() -> str:
    """Return the limit of this process's memory in words, if it has one."""
    try:
        import resource
    except ImportError:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "" if limit == resource.RLIM_INFINITY else f"; ulimit -v allows {limit // 1024:,} kB"
