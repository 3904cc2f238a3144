"""Sizes of listed files, looked up one after the other on a disk and concurrently in an object store."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tpudata.errors import BadRecordError, StorageError, StorageUnavailableError
from tpudata.storage import is_remote, request_limits, storage_for


@dataclasses.dataclass(frozen=True)
class ListedFile:
    """A valid row of a list.

    Attributes:
        origin: list and line, for messages.
        key: the path as written.
        path: the full path.
        split: the split in its column; empty if there is none.
        labels: names of its classes.
        features: values of the extra columns.
    """

    origin: str
    key: str
    path: str
    split: str
    labels: tuple[str, ...]
    features: Mapping[str, Any]


def attach_sizes(
    rows: Iterable[ListedFile | BadRecordError],
) -> Iterator[tuple[ListedFile, int] | BadRecordError]:
    """Yield each row with the size of its file in bytes, or its rejection, in order; look up remote sizes concurrently.

    Raises:
        StorageUnavailableError: a store cannot be reached.
    """
    pending: collections.deque[tuple[ListedFile | BadRecordError, Future[int | BadRecordError] | None]]
    pending = collections.deque()
    concurrency = request_limits().read_threads
    with ThreadPoolExecutor(concurrency, thread_name_prefix="tpudata-look") as pool:
        try:
            for row in rows:
                future = None
                if isinstance(row, ListedFile) and is_remote(row.path):
                    future = pool.submit(_look_up_size, row)
                elif not pending:
                    # No remote size is awaited, so this row is next.
                    yield _attach_size(row, future=None)
                    continue
                pending.append((row, future))
                if len(pending) >= concurrency:
                    yield _attach_size(*pending.popleft())
            while pending:
                yield _attach_size(*pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _attach_size(
    row: ListedFile | BadRecordError, future: Future[int | BadRecordError] | None
) -> tuple[ListedFile, int] | BadRecordError:
    """Return a row with the size of its file, from `future` or looked up now, or the row's rejection."""
    if isinstance(row, BadRecordError):
        return row
    size = _look_up_size(row) if future is None else future.result()
    return size if isinstance(size, BadRecordError) else (row, size)


def _look_up_size(row: ListedFile) -> int | BadRecordError:
    """Return the size of a row's file in bytes, or the row's rejection if it cannot be read or is not a file."""
    try:
        entry = storage_for(row.path).stat(row.path)
    except StorageUnavailableError:
        # An outage aborts the job; --on-bad-record=skip never counts it as a bad record.
        raise
    except StorageError as error:
        return BadRecordError(row.origin, f"its file cannot be read: {error}", key=row.key)
    if entry is None or entry.is_folder:
        return BadRecordError(
            row.origin, f"its file {'is a folder' if entry else 'does not exist'}: {row.key}", key=row.key
        )
    return entry.size
