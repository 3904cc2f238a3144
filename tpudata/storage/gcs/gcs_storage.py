"""Objects of Google Cloud Storage, `gs://BUCKET/OBJECT`.

A folder is a common prefix of object names up to a `/`: it exists as long as an object is in it.
"""

from __future__ import annotations

import contextlib
import operator
import uuid
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from urllib.parse import urlencode

from google.api_core import exceptions as api

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs.answers import checksum_number, list_page, object_url, stat_object
from tpudata.storage.gcs.errors import ERRORS, named, split_object, split_path
from tpudata.storage.gcs.listing import RANGE_NAMES, cut_names, scan_names
from tpudata.storage.gcs.read import open_object, read_part, read_whole
from tpudata.storage.gcs.retry_policy import RetryPolicy, UnprovenError
from tpudata.storage.gcs.session import SILENT_SECONDS, Session
from tpudata.storage.gcs.upload import PART_BYTES, ObjectWriter
from tpudata.storage.interface import Entry

_NO_CONTENT = 204


class GcsStorage:
    """Google Cloud Storage; `Storage` describes the methods, and `credentials` the credentials.

    Transient failures are retried, and so is every answer without proof, see `answers`.

    Args:
        policy: retries of failing requests; None takes the policy of the environment and of `RequestLimits`.
        silent_seconds: time after which failing requests are logged as warnings.
        part_bytes: bytes of a request of an upload, a multiple of 256 KiB.
        range_names: number of names in a range that `cuts` does not cut again.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        silent_seconds: float = SILENT_SECONDS,
        part_bytes: int = PART_BYTES,
        range_names: int = RANGE_NAMES,
    ) -> None:
        self._session = Session(policy, silent_seconds=silent_seconds)
        self._part_bytes = part_bytes
        self._range_names = range_names

    def join(self, base: str, *parts: str) -> str:
        """Return the path of something below `base`."""
        return "/".join((base.rstrip("/"), *parts))

    def list(self, folder: str) -> list[Entry]:
        """Return what is directly inside a folder, sorted by name."""
        return sorted(self.scan(folder), key=operator.attrgetter("name"))

    @property
    def lists_deep(self) -> bool:
        """Return True: folders exist only in the names."""
        return True

    def scan(
        self, folder: str, *, start: str = "", stop: str | None = None, limit: int | None = None, deep: bool = False
    ) -> Iterator[Entry]:
        """Yield what is inside a folder, in the order of names; memory holds a page of a thousand."""
        bucket, prefix = split_path(folder)
        is_there = not prefix or bool(start) or stop is not None
        count = 0
        for name, size, crc32c in scan_names(self._session, folder, start, stop, limit, deep=deep):
            is_there = True
            # Some programs mark a folder by an empty object of the same name.
            if size is not None and name.endswith("/"):
                continue
            if count == limit:
                return
            count += 1
            yield _folder(f"gs://{bucket}/{name[:-1]}") if size is None else _entry(bucket, name, size, crc32c)
        if not is_there:
            raise StorageError(f"{folder} could not be listed: there is no object below it. Check the path.")

    def cuts(self, folder: str, *, deep: bool = False) -> Sequence[str]:
        """Return names at which a folder of more than 16,384 names is cut."""
        return cut_names(self._session, folder, deep=deep, range_names=self._range_names)

    def stat(self, path: str) -> Entry | None:
        """Return the object or folder at a path, or None."""
        bucket, name = split_path(path)
        with named("looked up", path):
            # An object whose name ends with `/` marks a folder.
            is_object = name and not name.endswith("/")
            found = stat_object(self._session, bucket, name) if is_object else None
            if found is not None:
                return _entry(bucket, name, found.size, found.crc32c)
            prefix = f"{name.rstrip('/')}/" if name else ""
            inside = list_page(self._session, bucket, urlencode({"prefix": prefix, "maxResults": 1}))
        return _folder(path) if inside.objects or not prefix else None

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return a whole object."""
        del size  # One request in any case.
        return read_whole(self._session, path)

    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the object."""
        return read_part(self._session, path, offset, length, is_checked=is_checked)

    def expect(self, path: str, offset: int, length: int) -> None:
        """Ignore the hint: many threads request read-ahead themselves."""

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading, 8 MiB a request; it is read from one generation, even if it is replaced meanwhile."""
        return open_object(self._session, path)

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Write an object in one resumable upload, which is invisible until the context ends without an error."""
        bucket, name = split_object(path)
        with named("written", path):
            before = stat_object(self._session, bucket, name) if replace else None
            writer = self._writer(bucket, name, before.generation if before else 0)
        try:
            with named("written", path):
                yield writer  # type: ignore[misc]  # A raw file that takes all it is given.
                writer.finish()
        except BaseException:
            with contextlib.suppress(*ERRORS):
                writer.abandon()
            raise

    def check_writable(self, path: str) -> None:
        """Raise StorageError if no object can be written at or below a path; begins an upload, and abandons it."""
        bucket, name = split_path(path)
        with named("written", path):
            writer = self._writer(bucket, f"{name.rstrip('/')}/{uuid.uuid4().hex}".lstrip("/"), 0)
            writer.begin()
        with contextlib.suppress(*ERRORS):
            writer.abandon()

    def delete(self, path: str) -> None:
        """Remove an object; no error if there is none."""
        bucket, name = split_object(path)

        def delete() -> None:
            answer = self._session.request("DELETE", object_url(bucket, name))
            if answer.status_code != _NO_CONTENT and stat_object(self._session, bucket, name) is not None:
                raise UnprovenError(f"an answer {answer.status_code} to a deletion, but the object exists")

        with named("deleted", path), contextlib.suppress(api.NotFound):
            self._session.with_retries(delete)

    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the content of a small object, if it is `old`, by `new`; return whether that was done."""
        bucket, name = split_object(path)
        with named("written", path):
            found = stat_object(self._session, bucket, name)
        generation = 0 if found is None else found.generation
        try:
            standing = None if found is None else read_whole(self._session, path, generation)
        except StorageUnavailableError:
            raise
        except StorageError:
            # It was replaced after the stat.
            return False
        if standing != old or (found is None and new is None):
            return standing == old
        with named("written", path):
            try:
                if new is None:
                    self._delete_generation(bucket, name, generation)
                else:
                    self._put(self._writer(bucket, name, generation), new)
            except api.PreconditionFailed:
                return False
        return True

    def _writer(self, bucket: str, name: str, generation: int) -> ObjectWriter:
        return ObjectWriter(self._session, bucket, name, generation, self._part_bytes)

    def _delete_generation(self, bucket: str, name: str, generation: int) -> None:
        def delete() -> None:
            answer = self._session.request("DELETE", f"{object_url(bucket, name)}?ifGenerationMatch={generation}")
            if answer.status_code != _NO_CONTENT:
                found = stat_object(self._session, bucket, name)
                if found is not None and found.generation == generation:
                    raise UnprovenError(f"an answer {answer.status_code} to a deletion, but the object exists")

        with contextlib.suppress(api.NotFound):
            self._session.with_retries(delete)

    def _put(self, writer: ObjectWriter, data: bytes) -> None:
        try:
            writer.write(data)
            writer.finish()
        except BaseException:
            with contextlib.suppress(*ERRORS):
                writer.abandon()
            raise


def _entry(bucket: str, name: str, size: int, crc32c: str | None) -> Entry:
    return Entry(f"gs://{bucket}/{name}", name.rpartition("/")[2], size, False, checksum_number(crc32c))


def _folder(path: str) -> Entry:
    return Entry(path, path.rstrip("/").rpartition("/")[2] if "/" in path.removeprefix("gs://") else "", 0, True)
