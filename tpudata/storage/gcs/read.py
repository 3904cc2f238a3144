"""Reading of objects of Google Cloud Storage: whole, in parts, and from start to end; every answer needs proof."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import requests
from google.api_core import exceptions as api

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs.answers import (
    Stated,
    check_part,
    check_whole,
    checksum_text,
    is_encoded,
    object_url,
    stat_object,
)
from tpudata.storage.gcs.errors import ReplacedError, named, split_object
from tpudata.storage.gcs.retry_policy import UnprovenError
from tpudata.storage.gcs.session import Session
from tpudata.storage.gcs.upload import PART_BYTES

# An object store answers a request in tens of milliseconds; 8 MiB per request keeps one reader above 100 MB/s.
REQUEST_BYTES = PART_BYTES
_OK = 200


def read_whole(session: Session, path: str, generation: int | None = None) -> bytes:
    """Return the stored bytes of an object, of one generation only if it is given."""

    def once() -> bytes:
        response, data = _fetch(session, path, generation, {})
        _check_whole(session, path, generation, response, data)
        return data

    return _with_retries(session, path, generation, once)


def read_part(
    session: Session, path: str, offset: int, length: int, generation: int | None = None, *, is_checked: bool
) -> bytes:
    """Return `length` bytes of an object from `offset` on; fewer only at its end.

    The store has no checksums of parts, so a part is read twice, unless `is_checked` says that the caller has one.
    """
    if length <= 0:
        return b""

    def once() -> tuple[bytes, bool]:
        return _part(session, path, offset, length, generation)

    def compared() -> bytes:
        if offset == 0 or is_checked:
            # From 0, it may be the whole object, which has a checksum.
            data, is_proven = once()
            again = data if is_proven or is_checked else once()[0]
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="tpudata-again") as pool:
                other = pool.submit(once)
                data, _ = once()
                again, _ = other.result()
        if data != again:
            raise UnprovenError("two reads of one part of an object differ")
        return data

    return _with_retries(session, path, generation, compared)


def open_object(session: Session, path: str) -> io.BufferedReader:
    """Open an object for reading from start to end, 8 MiB a request, from one generation."""
    with named("opened", path):
        found = stat_object(session, *split_object(path))
        if found is None:
            raise api.NotFound("no such object")  # type: ignore[no-untyped-call]
    return io.BufferedReader(_ObjectReader(session, path, found), REQUEST_BYTES)


class _ObjectReader(io.RawIOBase):
    """One generation of an object, read in ranges; after the last one, all data are compared with the store's checksum."""

    def __init__(self, session: Session, path: str, found: Stated) -> None:
        super().__init__()
        self._session = session
        self._path = path
        self._found = found
        self._position = 0
        self._crc32c = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        # RawIOBase.readall requests 8 kB at a time.
        return b"".join(iter(lambda: self._next(REQUEST_BYTES), b""))

    def _next(self, most: int) -> bytes:
        size, generation, due, _ = self._found
        length = min(most, size - self._position)
        if length == size > 0:
            # A whole object is compared at once, so that it can be retried.
            data = read_whole(self._session, self._path, generation)
        else:
            is_checked = due is not None
            data = read_part(self._session, self._path, self._position, length, generation, is_checked=is_checked)
        if len(data) < length:
            raise StorageUnavailableError(
                f"{self._path} could not be read: got {len(data)} of {length} bytes at {self._position}. Run again."
            )
        self._position += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if data and self._position == size and due not in (None, checksum_text(self._crc32c)):
            raise StorageUnavailableError(
                f"{self._path} could not be read: the received data do not match the store's checksum. Run again."
            )
        return data


def _with_retries(session: Session, path: str, generation: int | None, read: Callable[[], bytes]) -> bytes:
    """Return the result of `read`, with retries; an object counts as absent only if a stat confirms it."""

    def confirmed() -> bytes:
        try:
            return read()
        except api.NotFound as error:
            found = stat_object(session, *split_object(path))
            if found is not None and generation in (None, found.generation):
                raise UnprovenError("an answer 404 to a read, but the object exists") from None
            if generation is None:
                raise
            raise ReplacedError("this generation") from error  # type: ignore[no-untyped-call]

    with named("read", path):
        return session.with_retries(confirmed)


def _part(session: Session, path: str, offset: int, length: int, generation: int | None) -> tuple[bytes, bool]:
    """Return a part of an object, and whether a checksum proves it."""
    header = {"Range": f"bytes={offset}-{offset + length - 1}"}
    try:
        response, data = _fetch(session, path, generation, header)
    except api.RequestRangeNotSatisfiable:
        found = stat_object(session, *split_object(path))
        if found is None or offset < found.size:
            raise UnprovenError(f"an answer 416 to a range of an object of {found and found.size} bytes") from None
        return b"", True
    if response.status_code == _OK:
        # A server may ignore the range.
        _check_whole(session, path, generation, response, data)
        return data[offset : offset + length], True
    _check_encoding(session, path, response)
    return data, check_part(response, data, offset, length)


def _fetch(
    session: Session, path: str, generation: int | None, headers: dict[str, str]
) -> tuple[requests.Response, bytes]:
    """Return an answer to a read, and its body as received."""
    # Google's method takes far more CPU, which matters for small objects.
    url = f"/download{object_url(*split_object(path))}?alt=media"
    if generation is not None:
        url += f"&generation={generation}"
    # Without this header the store would decompress objects with Content-Encoding.
    return session.fetch(url, {"Accept-Encoding": "gzip", **headers})


def _check_whole(session: Session, path: str, generation: int | None, response: requests.Response, data: bytes) -> None:
    _check_encoding(session, path, response)

    def stat() -> Stated | None:
        found = stat_object(session, *split_object(path))
        return found if found is None or generation in (None, found.generation) else None

    check_whole(response, data, stat)


def _check_encoding(session: Session, path: str, response: requests.Response) -> None:
    """Reject an object with Content-Encoding: its listed size is not that of its content, which cannot be read in parts."""
    if not is_encoded(response):
        return
    found = stat_object(session, *split_object(path))
    if found is None or not found.encoding:
        raise UnprovenError("an answer with an encoding that the object does not have")
    raise StorageError(
        f"{path} could not be read: it is stored with Content-Encoding: {found.encoding}, so that its size is not that"
        " of what it holds. Store it anew without, as `gcloud storage cp` does without --gzip-local; if it is a tar or"
        " text that is to stay compressed, `gcloud storage objects update --clear-content-encoding` does it."
    )
