"""Rejection of inputs: the functions that a listing and a conversion call with a bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from beam_jobs.references.reference import Reference
from tpudata.errors import BadRecordError, CorruptionError, SourceError

# Called with the error of an input that cannot be referred to. It raises if bad records end the run.
Reject: TypeAlias = Callable[[BadRecordError], None]
# The same for an input that cannot be converted, with its reference.
RejectInput: TypeAlias = Callable[[Reference, BadRecordError], None]


def raise_rejection(error: BadRecordError) -> None:
    """Raise the error of a rejected record: the first one ends the listing."""
    raise error


def add_key(error: BadRecordError, key: str | None) -> BadRecordError:
    """Return the rejection of a record whose key is known: --append then knows it again wherever the input has moved."""
    return BadRecordError(error.source, error.reason, error.offset, key)


def make_file_rejection(path: str, error: SourceError | CorruptionError, suffix: str = "") -> BadRecordError:
    """Return the error of a file as its rejection.

    Args:
        path: path of the file, which begins the message of a SourceError.
        error: reason for the rejection.
        suffix: text that follows the reason.
    """
    if isinstance(error, CorruptionError):
        return BadRecordError(path, f"{error.reason}{suffix}", error.offset)
    reason = str(error).removeprefix(path).removeprefix(":").removeprefix(" is").strip()
    return BadRecordError(path, f"{reason}{suffix}")
