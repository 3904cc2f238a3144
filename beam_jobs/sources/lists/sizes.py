"""The sizes of the files that a list names: one after the other from a disk, many at once from an object store."""

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
    """A row of a list whose columns are as they should be.

    Attributes:
        where: list and line, for messages.
        key: the path as it is written.
        file: the full path.
        split: the split in its column; empty without such a column.
        labels: names of its classes.
        features: values of the further columns.
    """

    where: str
    key: str
    file: str
    split: str
    labels: tuple[str, ...]
    features: Mapping[str, Any]


def with_sizes(
    rows: Iterable[ListedFile | BadRecordError],
) -> Iterator[tuple[ListedFile, int] | BadRecordError]:
    """Yield each row with the size of its file, or its rejection, in order; asks as many times at once as limits allow.

    Raises:
        StorageUnavailableError: a store cannot be asked.
    """
    pending: collections.deque[tuple[ListedFile | BadRecordError, Future[int | BadRecordError] | None]]
    pending = collections.deque()
    at_once = request_limits().read_threads
    with ThreadPoolExecutor(at_once, thread_name_prefix="tpudata-look") as pool:
        try:
            for row in rows:
                is_far = isinstance(row, ListedFile) and is_remote(row.file)
                if not is_far and not pending:
                    yield _with_size(row, None)
                    continue
                future = pool.submit(_look_up_size, row) if is_far and isinstance(row, ListedFile) else None
                pending.append((row, future))
                if len(pending) >= at_once:
                    yield _with_size(*pending.popleft())
            while pending:
                yield _with_size(*pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _with_size(
    row: ListedFile | BadRecordError, future: Future[int | BadRecordError] | None
) -> tuple[ListedFile, int] | BadRecordError:
    if isinstance(row, BadRecordError):
        return row
    size = _look_up_size(row) if future is None else future.result()
    return size if isinstance(size, BadRecordError) else (row, size)


def _look_up_size(row: ListedFile) -> int | BadRecordError:
    """Return the size of the file that a row lists, or the rejection of the row if it lists none."""
    try:
        entry = storage_for(row.file).stat(row.file)
    except StorageUnavailableError:
        # It is no fault of the row's.
        raise
    except StorageError as error:
        return BadRecordError(row.where, f"it lists what cannot be read: {error}", key=row.key)
    if entry is None or entry.is_folder:
        return BadRecordError(
            row.where, f"it lists {'a folder' if entry else 'what is not there'}: {row.key}", key=row.key
        )
    return entry.size
