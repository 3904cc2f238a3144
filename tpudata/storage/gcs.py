"""Objects of Google Cloud Storage, `gs://BUCKET/OBJECT`.

A folder is what the names of objects have in common up to a `/`: it is there as long as an object is in it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import operator
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import google_crc32c
from google.api_core import exceptions as api
from google.cloud import storage
from google.cloud.storage import exceptions as media
from google.cloud.storage.fileio import BlobWriter
from requests.adapters import HTTPAdapter

from tpudata.errors import StorageError
from tpudata.storage._gcs_errors import ERRORS, PRECONDITION_FAILED, named, split_path
from tpudata.storage._interface import Entry

# An object store answers a request in tens of milliseconds; 8 MiB per request keeps one reader or writer above 100 MB/s.
_REQUEST_BYTES = 8 << 20
# Requests that threads have under way at the same time, each with a connection that is kept.
_CONNECTIONS = 64
_TIMEOUT_SECONDS = 60
_PLAIN = (None, "", "identity")
_LISTED = "items(name,size),prefixes,nextPageToken"


class GcsStorage:
    """Google Cloud Storage, with application default credentials; see `Storage` for what each method promises.

    Where the environment variable STORAGE_EMULATOR_HOST names a server, that is asked, without credentials.
    """

    def __init__(self) -> None:
        self._made: storage.Client | None = None
        self._lock = threading.Lock()

    def join(self, base: str, *parts: str) -> str:
        """The path of something below `base`."""
        return "/".join((base.rstrip("/"), *parts))

    def list(self, folder: str) -> list[Entry]:
        """What is directly inside a folder, sorted by name."""
        bucket, name = split_path(folder)
        prefix = f"{name.rstrip('/')}/" if name else ""
        with named("listed", folder):
            found = self._client().list_blobs(
                bucket, prefix=prefix, delimiter="/", fields=_LISTED, timeout=_TIMEOUT_SECONDS
            )
            blobs = list(found)
        # Some programs mark a folder by an empty object that is called like it.
        entries = [_entry(bucket, blob.name, blob.size) for blob in blobs if blob.name != prefix]
        entries += [_entry(bucket, below.rstrip("/"), None) for below in found.prefixes]
        if not entries and not blobs and prefix:
            raise StorageError(f"{folder} could not be listed: there is no object below it.")
        return sorted(entries, key=operator.attrgetter("name"))

    def stat(self, path: str) -> Entry | None:
        """The object or folder at a path, or None."""
        bucket, name = split_path(path)
        with named("looked up", path), contextlib.suppress(api.NotFound):
            blob = self._client().bucket(bucket).get_blob(name, timeout=_TIMEOUT_SECONDS) if name else None
            if blob is not None:
                return _entry(bucket, name, blob.size)
            prefix = f"{name.rstrip('/')}/" if name else ""
            inside = self._client().list_blobs(bucket, prefix=prefix, max_results=1, timeout=_TIMEOUT_SECONDS)
            if next(iter(inside), None) is not None or not prefix:
                return Entry(path, name.rstrip("/").rpartition("/")[2], 0, True)
        return None

    def read(self, path: str, size: int | None = None) -> bytes:
        """A whole object."""
        del size  # One request, whatever there is.
        with named("read", path):
            return _download(self._blob(path), path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the object."""
        return self._read_range(path, offset, length, None)

    def open(self, path: str) -> BinaryIO:
        """An object opened for reading, 8 MiB a request; all of it is of one generation, whoever replaces it meanwhile."""
        blob = self._blob(path)
        with named("opened", path):
            blob.reload(timeout=_TIMEOUT_SECONDS)
        return io.BufferedReader(_ObjectReader(self, path, int(blob.size), blob.generation), _REQUEST_BYTES)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Writes an object in one resumable upload, which is nowhere to be seen until the context ends without an error."""
        blob = self._blob(path)
        with named("written", path):
            before = blob.bucket.get_blob(blob.name, timeout=_TIMEOUT_SECONDS)
        # It succeeds only where nobody else has written meanwhile, so that a request whose answer was lost can be sent again.
        writer = _ObjectWriter(blob, 0 if before is None else before.generation)
        try:
            with named("written", path):
                yield writer
        except BaseException:
            with contextlib.suppress(*ERRORS):
                writer.abandon()
            raise
        with named("written", path):
            writer.finish()

    def delete(self, path: str) -> None:
        """Removes an object; no error where there is none."""
        with named("deleted", path), contextlib.suppress(api.NotFound):
            self._blob(path).delete(timeout=_TIMEOUT_SECONDS)

    def _read_range(self, path: str, offset: int, length: int, generation: int | None) -> bytes:
        if length <= 0:
            return b""
        with named("read", path), contextlib.suppress(api.RequestRangeNotSatisfiable):
            blob = self._blob(path, generation)
            return _download(blob, path, start=offset, end=offset + length - 1, checksum=None)
        return b""

    def _blob(self, path: str, generation: int | None = None) -> storage.Blob:
        bucket, name = split_path(path)
        if not name:
            raise StorageError(f"{path} names no object.")
        with named("reached", path):
            return self._client().bucket(bucket).blob(name, generation=generation)

    def _client(self) -> storage.Client:
        with self._lock:
            if self._made is None:
                # A project is needed to make buckets, and for nothing here.
                self._made = storage.Client(project="<none>")
                # The client has no other way to say how many connections are kept.
                adapter = HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
                self._made._http.mount("https://", adapter)
                self._made._http.mount("http://", adapter)
            return self._made


class _ObjectReader(io.RawIOBase):
    """One generation of an object, read by ranges."""

    def __init__(self, owner: GcsStorage, path: str, size: int, generation: int) -> None:
        super().__init__()
        self._owner = owner
        self._path = path
        self._size = size
        self._generation = generation
        self._position = 0

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
        length = min(most, self._size - self._position)
        data = self._owner._read_range(self._path, self._position, length, self._generation)
        if len(data) < length:
            raise StorageError(
                f"{self._path} could not be read: {len(data)} of {length} bytes at {self._position} came."
            )
        self._position += len(data)
        return data


class _ObjectWriter(BlobWriter):  # type: ignore[misc]
    """An upload that knows what it has sent."""

    def __init__(self, blob: storage.Blob, generation: int) -> None:
        super().__init__(
            blob,
            chunk_size=_REQUEST_BYTES,
            ignore_flush=True,
            if_generation_match=generation,
            timeout=_TIMEOUT_SECONDS,
            checksum="crc32c",
        )
        self._crc32c = self._size = 0

    def write(self, data: Any) -> int:
        self._crc32c = google_crc32c.extend(self._crc32c, bytes(data))
        self._size += len(data)
        return int(super().write(data))

    def abandon(self) -> None:
        """Ends the upload without an object."""
        self._buffer.close()
        if self._upload_and_transport:
            # `terminate` asks to delete another address (google-cloud-storage 3.17), and the store would keep the parts for a week.
            upload, transport = self._upload_and_transport
            transport.delete(upload.resumable_url, timeout=_TIMEOUT_SECONDS)

    def finish(self) -> None:
        """Ends the upload. Where another worker wrote the same bytes first, that is as good."""
        try:
            self.close()
        except (api.PreconditionFailed, media.InvalidResponse) as error:
            code = error.code if isinstance(error, api.PreconditionFailed) else error.response.status_code
            found = self._blob.bucket.get_blob(self._blob.name) if code == PRECONDITION_FAILED else None
            if found is None or (found.size, _crc32c(found)) != (self._size, self._crc32c):
                raise


def _download(blob: storage.Blob, path: str, **said: Any) -> bytes:
    """The stored bytes of an object, or of a part of it.

    Raises:
        StorageError: they are stored as the encoding of other bytes, which the store would deliver in their place where nobody
            says otherwise: their size is not the one that is listed, and they have no parts.
    """
    data = bytes(blob.download_as_bytes(timeout=_TIMEOUT_SECONDS, raw_download=True, **said))
    if blob.content_encoding not in _PLAIN:
        raise StorageError(
            f"{path} could not be read: it is stored with Content-Encoding: {blob.content_encoding}, so that its size is not that"
            " of what it holds. Store it anew without, as `gcloud storage cp` does without --gzip-local; where it is a tar or"
            " text that is to stay compressed, `gcloud storage objects update --clear-content-encoding` does it."
        )
    return data


def _crc32c(blob: storage.Blob) -> int:
    return int.from_bytes(base64.b64decode(blob.crc32c), "big")


def _entry(bucket: str, name: str, size: int | None) -> Entry:
    return Entry(f"gs://{bucket}/{name}", name.rpartition("/")[2], size or 0, size is None)
