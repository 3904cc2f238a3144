"""Objects of Google Cloud Storage, `gs://BUCKET/OBJECT`.

A folder is what the names of objects have in common up to a `/`: it is there as long as an object is in it.
"""

from __future__ import annotations

import contextlib
import io
import operator
import re
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
from google.api_core import exceptions as api

from tpudata.errors import StorageError
from tpudata.storage._gcs_errors import ERRORS, ReplacedError, named, split_path
from tpudata.storage._gcs_session import DamagedError, Patience, Session
from tpudata.storage._gcs_upload import PART_BYTES, ObjectWriter, checksum_text, object_url
from tpudata.storage._interface import Entry

# An object store answers a request in tens of milliseconds; 8 MiB per request keeps one reader above 100 MB/s.
_REQUEST_BYTES = PART_BYTES
_PLAIN = (None, "", "identity")
_LISTED = "items(name,size),prefixes,nextPageToken"
_CRC32C = re.compile(r"crc32c=([A-Za-z0-9+/]+=*)")


class GcsStorage:
    """Google Cloud Storage; see `Storage` for what each method promises, and `_gcs_session` for whose credentials are used.

    What fails in a way that may pass is tried again; what comes whole is compared with the checksum that the store has of it.

    Args:
        patience: with what fails.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._session = Session(patience or Patience())

    def join(self, base: str, *parts: str) -> str:
        """The path of something below `base`."""
        return "/".join((base.rstrip("/"), *parts))

    def list(self, folder: str) -> list[Entry]:
        """What is directly inside a folder, sorted by name."""
        bucket, name = split_path(folder)
        prefix = f"{name.rstrip('/')}/" if name else ""
        with named("listed", folder):
            found = self._session.client.list_blobs(
                bucket, prefix=prefix, delimiter="/", fields=_LISTED, **self._said()
            )
            blobs = list(found)
        if f"{prefix}/" in found.prefixes:
            raise StorageError(
                f"{folder} could not be listed: an object below it has a name with an empty part, which is no folder:"
                f" gs://{bucket}/{prefix}/... Give it another name: `gcloud storage mv 'gs://{bucket}/{prefix}/*' gs://{bucket}/...`."
            )
        # Some programs mark a folder by an empty object that is called like it.
        entries = [_entry(bucket, blob.name, blob.size) for blob in blobs if blob.name != prefix]
        entries += [_entry(bucket, below.rstrip("/"), None) for below in found.prefixes]
        if not entries and not blobs and prefix:
            raise StorageError(f"{folder} could not be listed: there is no object below it.")
        return sorted(entries, key=operator.attrgetter("name"))

    def stat(self, path: str) -> Entry | None:
        """The object or folder at a path, or None."""
        bucket, name = split_path(path)
        with named("looked up", path):
            # An object whose name ends with `/` marks a folder.
            found = self._look(bucket, name) if name and not name.endswith("/") else None
            if found is not None:
                return _entry(bucket, name, found.size)
            prefix = f"{name.rstrip('/')}/" if name else ""
            inside = self._session.client.list_blobs(bucket, prefix=prefix, max_results=1, **self._said())
            if next(iter(inside), None) is not None or not prefix:
                return Entry(path, name.rstrip("/").rpartition("/")[2], 0, True)
        return None

    def read(self, path: str, size: int | None = None) -> bytes:
        """A whole object."""
        del size  # One request, whatever there is.
        return self._get(path, {})

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the object."""
        return self._read_range(path, offset, length, None)

    def expect(self, path: str, offset: int, length: int) -> None:
        """Nothing is begun: what is read in advance is asked for, by many threads."""

    def open(self, path: str) -> BinaryIO:
        """An object opened for reading, 8 MiB a request; all of it is of one generation, whoever replaces it meanwhile."""
        with named("opened", path):
            found = self._look(*_split_object(path))
            if found is None:
                raise api.NotFound("no such object")  # type: ignore[no-untyped-call]
        return io.BufferedReader(_ObjectReader(self, path, found), _REQUEST_BYTES)

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Writes an object in one resumable upload, which is nowhere to be seen until the context ends without an error."""
        bucket, name = _split_object(path)
        with named("written", path):
            before = self._look(bucket, name) if replace else None
            writer = ObjectWriter(self._session, bucket, name, before.generation if before else 0)
        try:
            with named("written", path):
                yield writer  # type: ignore[misc]  # A raw file that takes all it is given.
                writer.finish()
        except BaseException:
            with contextlib.suppress(*ERRORS):
                writer.abandon()
            raise

    def check_writable(self, path: str) -> None:
        """Raise StorageError if no object could be made at or below a path; begins an upload, and abandons it."""
        bucket, name = split_path(path)
        with named("written", path):
            writer = ObjectWriter(self._session, bucket, f"{name.rstrip('/')}/{uuid.uuid4().hex}".lstrip("/"), 0)
            writer.begin()
        with contextlib.suppress(*ERRORS):
            writer.abandon()

    def delete(self, path: str) -> None:
        """Removes an object; no error where there is none."""
        url = object_url(*_split_object(path))
        with named("deleted", path), contextlib.suppress(api.NotFound):
            self._session.patiently(lambda: self._session.request("DELETE", url))

    def _read_range(self, path: str, offset: int, length: int, generation: int | None) -> bytes:
        if length <= 0:
            return b""
        return self._get(path, {"Range": f"bytes={offset}-{offset + length - 1}"}, generation)

    def _get(self, path: str, headers: dict[str, str], generation: int | None = None) -> bytes:
        """The stored bytes of an object, or of a part of it.

        Raises:
            StorageError: they are stored as the encoding of other bytes, which the store would deliver in their place where nobody
                says otherwise: their size is not the one that is listed, and they have no parts.
        """
        # Google's own method takes far more of the processor, which counts where objects are small.
        url = f"/download{object_url(*_split_object(path))}?alt=media"
        if generation is not None:
            url += f"&generation={generation}"
        sent = {"Accept-Encoding": "gzip", **headers}

        def get() -> tuple[bytes, str | None]:
            try:
                response = self._session.request("GET", url, sent, is_read_later=True)
            except api.RequestRangeNotSatisfiable:
                return b"", None
            with response:
                data = response.raw.read(decode_content=False)
                encoding = response.headers.get("Content-Encoding")
                if response.status_code == 200 and encoding in _PLAIN:
                    due = _CRC32C.search(response.headers.get("X-Goog-Hash", ""))
                    if due and due[1] != checksum_text(google_crc32c.value(data)):
                        raise DamagedError
                return data, encoding

        with named("read", path):
            try:
                data, encoding = self._session.patiently(get)
            except api.NotFound as error:
                if generation is None:
                    raise
                raise ReplacedError("this generation") from error  # type: ignore[no-untyped-call]
        if encoding not in _PLAIN:
            raise StorageError(
                f"{path} could not be read: it is stored with Content-Encoding: {encoding}, so that its size is not that"
                " of what it holds. Store it anew without, as `gcloud storage cp` does without --gzip-local; where it is a tar or"
                " text that is to stay compressed, `gcloud storage objects update --clear-content-encoding` does it."
            )
        return data

    def _said(self) -> dict[str, Any]:
        """What Google's client is told with each call."""
        return {"timeout": self._session.patience.answer_within, "retry": self._session.new_retry()}

    def _look(self, bucket: str, name: str) -> _Found | None:
        """What the store says of an object, or None."""
        url = f"{object_url(bucket, name)}?fields=size,generation,crc32c"
        try:
            found = self._session.patiently(lambda: self._session.request("GET", url).json())
        except api.NotFound:
            return None
        return _Found(int(found["size"]), int(found["generation"]), found.get("crc32c"))


class _Found(NamedTuple):
    """An object: its size in bytes, its generation, and its checksum, base64 of the big-endian bytes."""

    size: int
    generation: int
    crc32c: str | None


class _ObjectReader(io.RawIOBase):
    """One generation of an object, read by ranges; with the last of them, all that came is compared with the store's checksum."""

    def __init__(self, owner: GcsStorage, path: str, found: _Found) -> None:
        super().__init__()
        self._owner = owner
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
        # Python's own asks for 8 kB at a time.
        return b"".join(iter(lambda: self._next(_REQUEST_BYTES), b""))

    def _next(self, most: int) -> bytes:
        size, generation, due = self._found
        length = min(most, size - self._position)
        if length == size > 0:
            # What is asked for whole is compared, and asked for again, at once.
            data = self._owner._get(self._path, {}, generation)
        else:
            data = self._owner._read_range(self._path, self._position, length, generation)
        if len(data) < length:
            raise StorageError(
                f"{self._path} could not be read: {len(data)} of {length} bytes at {self._position} came."
            )
        self._position += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if data and self._position == size and due not in (None, checksum_text(self._crc32c)):
            raise StorageError(
                f"{self._path} could not be read: what came does not fit the store's checksum. Run again."
            )
        return data


def _split_object(path: str) -> tuple[str, str]:
    bucket, name = split_path(path)
    if not name:
        raise StorageError(f"{path} names no object.")
    return bucket, name


def _entry(bucket: str, name: str, size: int | None) -> Entry:
    return Entry(f"gs://{bucket}/{name}", name.rpartition("/")[2], size or 0, size is None)
