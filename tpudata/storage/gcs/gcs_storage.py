"""Objects of Google Cloud Storage, `gs://BUCKET/OBJECT`.

A folder is a common prefix of object names up to a `/`: it exists as long as an object is in it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO
from urllib.parse import urlencode

from tpudata.errors import StorageError
from tpudata.storage.gcs.answers import describe_object, list_page, make_object_url
from tpudata.storage.gcs.errors import ERRORS, split_object, split_path, translate_errors
from tpudata.storage.gcs.listing import RANGE_NAMES, cut_names, scan_names
from tpudata.storage.gcs.transport import Transport
from tpudata.storage.gcs.upload import PART_BYTES, ObjectWriter
from tpudata.storage.interface import Entry
from tpudata.storage.objects.checked_storage import CheckedStorage
from tpudata.storage.objects.errors import UnprovenError
from tpudata.storage.objects.object_store import Content, Description
from tpudata.storage.objects.retries import RetryPolicy

_OK, _NO_CONTENT, _PARTIAL = 200, 204, 206
_CRC32C = re.compile(r"crc32c=([A-Za-z0-9+/]+=*)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# Values of Content-Encoding for bytes that are not encoded.
_PLAIN_ENCODINGS = (None, "", "identity")


class GcsStorage(CheckedStorage):
    """Google Cloud Storage; `Storage` describes the methods, and the module `credentials` the credentials.

    Transient failures are retried, and so is every answer without proof, see `CheckedStorage`, `answers` and `upload`.

    Args:
        policy: retries of failing requests; None takes the policy of the environment and of `RequestLimits`.
        part_bytes: bytes of a request of an upload, a multiple of 256 KiB.
        range_names: maximum number of names in a folder, or in a range of it, that `cuts` leaves whole; a larger one is cut if
            its names allow.
    """

    def __init__(
        self, policy: RetryPolicy | None = None, *, part_bytes: int = PART_BYTES, range_names: int = RANGE_NAMES
    ) -> None:
        super().__init__(_GcsObjects(Transport(policy), part_bytes, range_names))


class _GcsObjects:
    """The calls of the JSON API; `ObjectStore` describes them.

    Args:
        transport: sends the requests.
        part_bytes: bytes of a request of an upload, a multiple of 256 KiB.
        max_range_names: maximum number of names in a folder, or in a range of it, that `cuts` leaves whole.
    """

    has_checksums = True
    lists_deep = True

    def __init__(self, transport: Transport, part_bytes: int, max_range_names: int) -> None:
        self._transport = transport
        self._part_bytes = part_bytes
        self._max_range_names = max_range_names
        self.retries = transport.retries

    def translate_errors(self, action: str, path: str) -> AbstractContextManager[None]:
        return translate_errors(action, path)

    def scan(self, folder: str, start: str, stop: str | None, limit: int | None, *, deep: bool) -> Iterator[Entry]:
        """Yield the entries of a folder; memory holds a page of a thousand."""
        bucket, prefix = split_path(folder)
        # A bucket, or a range of a folder, may be empty; a folder without objects does not exist.
        exists = not prefix or bool(start) or stop is not None
        count = 0
        for name, size, crc32c in scan_names(self._transport, folder, start, stop, limit, deep=deep):
            exists = True
            # Some programs mark a folder with an empty object of the same name.
            if size is not None and name.endswith("/"):
                continue
            # `scan_names` lists one name more, in case the folder is marked.
            if count == limit:
                return
            count += 1
            if size is None:
                yield _make_folder(f"gs://{bucket}/{name[:-1]}")
            else:
                yield _make_entry(bucket, name, size, crc32c)
        if not exists:
            raise StorageError(f"{folder} could not be listed: there is no object below it. Check the path.")

    def cuts(self, folder: str, *, deep: bool) -> Sequence[str]:
        """Return the names that cut a folder of more than `max_range_names` names into ranges; empty for a smaller folder."""
        return cut_names(self._transport, folder, deep=deep, max_range_names=self._max_range_names)

    def find(self, path: str) -> Entry | None:
        """Return the object or folder at a path; None if neither exists. A folder exists if an object is below it."""
        bucket, name = split_path(path)
        # An object whose name ends with `/` marks a folder.
        description = describe_object(self._transport, bucket, name) if name and not name.endswith("/") else None
        if description is not None:
            return _make_entry(bucket, name, description.size, description.crc32c)
        prefix = f"{name.rstrip('/')}/" if name else ""
        first_page = list_page(self._transport, bucket, urlencode({"prefix": prefix, "maxResults": 1}))
        # A bucket that can be listed exists, even without objects.
        return _make_folder(path) if first_page.objects or not prefix else None

    def describe(self, path: str) -> Description | None:
        return describe_object(self._transport, *split_object(path))

    def get(self, path: str, span: tuple[int, int] | None, version: int | None) -> Content:
        """Return the bytes of a version of an object, None for the current one: all bytes, or `span` (offset and length)."""
        url = f"/download{make_object_url(*split_object(path))}?alt=media"
        if version is not None:
            url += f"&generation={version}"
        # Without this header the store would decompress objects with Content-Encoding.
        request_headers = {"Accept-Encoding": "gzip"}
        if span is not None:
            offset, length = span
            request_headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        status, headers, data = self._transport.request("GET", url, request_headers)
        if headers.get("Content-Encoding") not in _PLAIN_ENCODINGS:
            self._reject_encoded(path)
        crc32c = _read_checksum(headers)
        if status == _OK:
            return Content(data, is_whole=True, crc32c=crc32c)
        content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if status != _PARTIAL or span is None or content_range is None:
            raise UnprovenError(f"an answer {status} to a read, without its range")
        first, last, size = map(int, content_range.groups())
        if len(data) != last - first + 1:
            raise UnprovenError(f"received {len(data)} bytes as {content_range[0]}")
        return Content(data, is_whole=False, offset=first, size=size, crc32c=crc32c)

    def remove(self, path: str, version: int | None) -> None:
        """Remove an object if it is this version; any version if `version` is None."""
        bucket, name = split_object(path)
        query = "" if version is None else f"?ifGenerationMatch={version}"
        answer = self._transport.request("DELETE", f"{make_object_url(bucket, name)}{query}")
        if answer.status != _NO_CONTENT:
            # This is not the store's answer, so check whether the object is gone.
            description = describe_object(self._transport, bucket, name)
            if description is not None and version in (None, description.version):
                raise UnprovenError(f"an answer {answer.status} to a deletion, but the object exists")

    def put(self, path: str, data: bytes, version: int | None) -> None:
        """Write a small object in place of a version of it; a new object if `version` is None."""
        # Generation 0 stands for an object that does not exist.
        with self._open_upload(path, version or 0) as writer:
            writer.write(data)

    @contextlib.contextmanager
    def write(self, path: str, *, replace: bool) -> Iterator[BinaryIO]:
        """Yield a writer of an object: one resumable upload, or for a small object one request."""
        # Without `replace` the generation is 0, so an existing object is a conflict.
        with translate_errors("written", path):
            description = self.retries.run(lambda: self.describe(path)) if replace else None
        version = description.version if description else 0
        with translate_errors("written", path), self._open_upload(path, version) as writer:
            yield writer  # type: ignore[misc]  # A raw file that takes all it is given.

    def check_writable(self, path: str) -> None:
        """Raise StorageError if nothing can be written below a path: begin an upload, and abandon it."""
        bucket, name = split_path(path)
        with translate_errors("written", path):
            writer = ObjectWriter(
                self._transport,
                bucket,
                # The name is empty for a bucket.
                f"{name.rstrip('/')}/{uuid.uuid4().hex}".lstrip("/"),
                generation=0,
                part_bytes=self._part_bytes,
            )
            writer.begin()
        with contextlib.suppress(*ERRORS):
            writer.abandon()

    @contextlib.contextmanager
    def _open_upload(self, path: str, version: int) -> Iterator[ObjectWriter]:
        """Yield a writer that replaces `version` of an object, 0 for a new one; finish the upload, or abandon it after an error."""
        bucket, name = split_object(path)
        writer = ObjectWriter(self._transport, bucket, name, generation=version, part_bytes=self._part_bytes)
        try:
            yield writer
            writer.finish()
        except BaseException:
            with contextlib.suppress(*ERRORS):
                writer.abandon()
            raise

    def _reject_encoded(self, path: str) -> None:
        """Raise StorageError for an object with Content-Encoding: its content has a different size, and cannot be read in parts.

        UnprovenError if the object has no Content-Encoding, so that the answer was not the store's.
        """
        description = self.describe(path)
        if description is None or not description.encoding:
            raise UnprovenError("an answer with an encoding that the object does not have")
        raise StorageError(
            f"{path} could not be read: it is stored with Content-Encoding: {description.encoding}, so its listed size is not the"
            " size of its content. Store it again without one, as `gcloud storage cp` does without --gzip-local; to keep a tar or"
            " text compressed, run `gcloud storage objects update --clear-content-encoding`."
        )


def _read_checksum(headers: Mapping[str, str]) -> int | None:
    """Return the CRC-32C in the header X-Goog-Hash, or None if the header has none; UnprovenError if it is damaged."""
    match = _CRC32C.search(headers.get("X-Goog-Hash", ""))
    if match is None:
        return None
    try:
        return int.from_bytes(base64.b64decode(match[1]), "big")
    except binascii.Error:
        raise UnprovenError("an answer with a damaged checksum") from None


def _make_entry(bucket: str, name: str, size: int, crc32c: int | None) -> Entry:
    return Entry(f"gs://{bucket}/{name}", name.rpartition("/")[2], size, is_folder=False, crc32c=crc32c)


def _make_folder(path: str) -> Entry:
    """Return the entry of a folder or a bucket."""
    # The entry of a bucket has an empty name.
    name = path.rstrip("/").rpartition("/")[2] if "/" in path.removeprefix("gs://") else ""
    return Entry(path, name, size=0, is_folder=True)
