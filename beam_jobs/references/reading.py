"""Reading of references' bytes, in order: sequentially from a disk, concurrently from an object store."""

from __future__ import annotations

import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from beam_jobs.references.read_ahead import read_ahead
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tpudata.errors import BadRecordError, StorageError, StorageUnavailableError, UsageError
from tpudata.storage import is_remote, request_limits, storage_for

# A worker holds an input and its record at the same time, and readers reject records of 2 GiB.
MAX_INPUT_BYTES = 1 << 30
# First words of the reason of an input whose file cannot be read.
_UNREADABLE = "could not be read:"


def read_reference(reference: Reference) -> bytes:
    """Return the bytes that a reference points to.

    Raises:
        BadRecordError: the bytes cannot be read, are too many, or differ from the listed size or CRC-32.
        StorageUnavailableError: the store does not answer.
        UsageError: the payload's `fetch` returned something other than bytes.
    """
    if reference.data:
        return reference.data
    if reference.payload.is_fetched and not reference.spool:
        return _fetch(reference)
    # The listing held spooled bytes in memory already.
    if reference.size > MAX_INPUT_BYTES and not reference.spool:
        raise make_too_large_error(
            reference.origin, reference.size, None if reference.offset == WHOLE_FILE else reference.offset
        )
    path = reference.spool or reference.path
    storage = storage_for(path)
    try:
        if reference.offset == WHOLE_FILE:
            data = storage.read(path, reference.size)
            _check_size(reference, data)
            return data
        data = storage.read_range(path, reference.offset, reference.size)
    except StorageUnavailableError:
        # An outage aborts the job; --on-bad-record=skip never counts it as a bad record.
        raise
    except StorageError as error:
        raise BadRecordError(reference.origin, describe_read_error(path, error)) from error
    if len(data) < reference.size:
        raise BadRecordError(reference.origin, f"cut: {len(data)} of {reference.size} bytes", reference.offset)
    if reference.crc32 is not None:
        _check_crc32(reference, data, reference.crc32)
    return data


def _fetch(reference: Reference) -> bytes:
    """Return the bytes that a reference's payload fetches.

    Raises:
        BadRecordError: the payload raised a ValueError.
        UsageError: `fetch` returned something other than bytes.
    """
    try:
        data: Any = reference.payload.fetch(reference)
    except ValueError as error:
        raise BadRecordError(reference.origin, f"could not be read: {error}") from error
    if not isinstance(data, bytes):
        payload_class = type(reference.payload)
        name = f"{payload_class.__module__}.{payload_class.__qualname__}.fetch"
        raise UsageError(
            f"{name}: not the bytes of a record (got {type(data).__name__}, expected bytes). Change the source."
        )
    return data


def describe_read_error(path: str, error: StorageError) -> str:
    """Return why an input in the file `path` was rejected, given the error of reading it."""
    # The message of the error names the file, as the line of a rejected input does.
    reason = str(error).removeprefix(f"{path} ")
    return reason if reason.startswith(_UNREADABLE) else f"{_UNREADABLE} {error}"


def make_too_large_error(source: str, size: int, offset: int | None = None) -> BadRecordError:
    """Return the error of an input of more than `MAX_INPUT_BYTES`."""
    return BadRecordError(source, f"too large: {size} bytes; an input has {MAX_INPUT_BYTES} at most", offset)


def _check_crc32(reference: Reference, data: bytes, expected: int) -> None:
    """Raise BadRecordError if the CRC-32 of bytes differs from the archive's."""
    crc32 = zlib.crc32(data)
    if crc32 != expected:
        reason = f"damaged in the archive: its CRC-32 is {crc32:08x} (expected {expected:08x})"
        raise BadRecordError(reference.origin, reason, reference.offset)


def _check_size(reference: Reference, data: bytes) -> None:
    """Raise BadRecordError unless the bytes of a whole file have its listed size, on which the plan and --append depend."""
    if len(data) != reference.size:
        raise BadRecordError(
            reference.origin, f"changed during the run: {len(data)} bytes, {reference.size} when it was listed"
        )


def read_references(references: Iterable[Reference]) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
    """Yield each reference, in order, with its bytes or the BadRecordError of `read_reference`.

    If the first reference points to an object store, up to `RequestLimits.read_threads` references are read at the same time, and
    at most 64 MiB, or one larger reference, are read ahead.
    """
    remaining = iter(references)
    first_reference = next(remaining, None)
    if first_reference is None:
        return
    references = itertools.chain([first_reference], remaining)
    if is_remote(first_reference.spool or first_reference.path):
        yield from read_ahead(references, _read, operator.attrgetter("size"), request_limits().read_threads)
        return
    for reference in references:
        yield reference, _read(reference)


def _read(reference: Reference) -> bytes | BadRecordError:
    """Return the bytes of a reference, or the error that makes it a bad record."""
    try:
        return read_reference(reference)
    except BadRecordError as error:
        return error
