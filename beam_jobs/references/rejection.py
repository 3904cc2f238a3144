"""Rejection of inputs: the functions that a listing and a conversion call with a bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from beam_jobs.references.reference import Reference
from tpudata.errors import BadRecordError, CorruptionError, SourceError

# Called while listing with the error of an input that gets no reference. It raises if bad records end the run.
Reject: TypeAlias = Callable[[BadRecordError], None]
# Called while converting with the reference of a bad input and its error. It raises if bad records end the run.
RejectInput: TypeAlias = Callable[[Reference, BadRecordError], None]


def raise_rejection(error: BadRecordError) -> None:
    """Raise the error: with this `Reject`, the first bad record ends the listing."""
    raise error


def add_key(error: BadRecordError, key: str | None) -> BadRecordError:
    """Return the error with the record's key, None if unknown: --append recognizes the record by it even if the input has moved."""
    return BadRecordError(error.source, error.reason, error.offset, key)


def make_file_rejection(path: str, error: SourceError | CorruptionError, suffix: str = "") -> BadRecordError:
    """Convert the error of a whole file to its rejection.

    Args:
        path: path of the file, which begins the message of a SourceError.
        error: error for which the file, or a part of it, is rejected.
        suffix: words that follow the reason.
    """
    if isinstance(error, CorruptionError):
        return BadRecordError(path, f"{error.reason}{suffix}", error.offset)
    # Messages begin with "PATH: " or "PATH is ".
    reason = str(error).removeprefix(path).removeprefix(":").removeprefix(" is").strip()
    return BadRecordError(path, f"{reason}{suffix}")
