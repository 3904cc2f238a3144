"""From a reference to its bytes."""

from __future__ import annotations

from beam_jobs.reference import WHOLE_FILE, Reference
from tpudata.errors import BadRecordError, StorageError
from tpudata.storage import storage_for


def read_reference(reference: Reference) -> bytes:
    """The bytes that a reference points to; BadRecordError where they cannot be read, or are fewer than they were."""
    path = reference.spool or reference.path
    storage = storage_for(path)
    try:
        if reference.offset == WHOLE_FILE:
            return storage.read(path)
        data = storage.read_range(path, reference.offset, reference.size)
    except StorageError as error:
        raise BadRecordError(reference.origin, f"could not be read: {error}") from error
    if len(data) < reference.size:
        raise BadRecordError(reference.origin, f"cut: {len(data)} of {reference.size} bytes", reference.offset)
    return data
