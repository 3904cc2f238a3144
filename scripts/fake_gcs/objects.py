"""State of the store: buckets, objects with generations, unfinished uploads, and issued tokens."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import itertools
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import google_crc32c

# All parts of an upload but the last have a multiple of these bytes.
PART_BYTES = 256 << 10
_PRECONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


class RejectedError(Exception):
    """A rejected request: the status code and the message of the answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclasses.dataclass(frozen=True)
class Object:
    """One generation of an object.

    Attributes:
        data: its bytes.
        generation: number of the generation, larger than that of any object stored before.
        encoding: its Content-Encoding, or None.
        kind: its Content-Type.
    """

    data: bytes
    generation: int
    encoding: str | None = None
    kind: str = "application/octet-stream"

    @functools.cached_property
    def crc32c(self) -> str:
        """The CRC-32C, as the API returns it: base64 of the big-endian bytes."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @functools.cached_property
    def md5(self) -> str:
        """The MD5 digest in base64."""
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    @property
    def hashes(self) -> str:
        """The value of the header x-goog-hash."""
        return f"crc32c={self.crc32c},md5={self.md5}"

    def make_resource(self, bucket: str, name: str) -> dict[str, Any]:
        """Return the object's resource in the JSON API."""
        return {
            **({"contentEncoding": self.encoding} if self.encoding else {}),
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self.generation}",
            "bucket": bucket,
            "name": name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.kind,
            "storageClass": "STANDARD",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
            "etag": f"e{self.generation}",
            "crc32c": self.crc32c,
            "md5Hash": self.md5,
        }


@dataclasses.dataclass
class Upload:
    """An upload.

    Attributes:
        bucket, name: bucket and name of the object.
        query: query of the request that began it, which contains the preconditions.
        encoding: Content-Encoding of the object, or None.
        kind: its Content-Type.
        crc32c: the CRC-32C that the client sent, before the bytes or with the last of them, in base64; None if it sent none.
        data: the bytes that were received.
        result: the object, once the upload is finished.
    """

    bucket: str
    name: str
    query: Mapping[str, str]
    encoding: str | None
    kind: str
    crc32c: str | None = None
    data: bytearray = dataclasses.field(default_factory=bytearray)
    result: Object | None = None


class Page(NamedTuple):
    """A page of a listing.

    Attributes:
        prefixes: names of the folders.
        objects: the objects, by name.
        next_token: token of the next page, None for the last page.
    """

    prefixes: list[str]
    objects: dict[str, Object]
    next_token: str | None


class Objects:
    """The state; its methods raise `RejectedError`, and several threads may call them.

    Their argument `query` contains the values of the request's query, which may have a generation and preconditions.

    Attributes:
        buckets: objects by bucket and name.
        uploads: unfinished uploads, by id.
        finished: finished uploads, by id.
        denied: buckets that no account may access.
        retained: buckets whose objects may be neither replaced nor deleted.
        requester_pays: projects that may pay, by bucket; other buckets require none.
        uploads_at: scheme and host to which resumable uploads are sent; None for the scheme and host of the request.
        needs_token: whether a request without a token is rejected.
        repeats_folders: whether a page of a listing begins with the folder with which the page before ended.
        lock: lock of the state.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, Upload] = {}
        self.finished: dict[str, Upload] = {}
        self.denied: set[str] = set()
        self.retained: set[str] = set()
        self.requester_pays: dict[str, set[str]] = {}
        self.uploads_at: str | None = None
        self.needs_token = False
        self.repeats_folders = False
        self.lock = threading.RLock()
        self._generations = itertools.count(1001)
        self._numbers = itertools.count()
        self._tokens: set[str] = set()
        self._expired: set[str] = set()

    def bucket(self, name: str) -> dict[str, Object]:
        """Make a bucket, unless it exists; return its objects by name."""
        return self.buckets.setdefault(name, {})

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        encoding: str | None = None,
        kind: str = "application/octet-stream",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Store an object as a new generation, if the preconditions of `query` hold; return it.

        Args:
            bucket: the bucket.
            name: name of the object.
            data: the object's bytes.
            encoding: its Content-Encoding, or None.
            kind: its Content-Type.
            query: query of the request; None without preconditions.
        """
        with self.lock:
            objects = self.find_bucket(bucket)
            check_preconditions(objects.get(name), query or {})
            if name in objects:
                self._check_retention(bucket, name)
            objects[name] = Object(data, next(self._generations), encoding, kind)
            return objects[name]

    def find_bucket(self, bucket: str) -> dict[str, Object]:
        """Return the objects of a bucket by name; reject a bucket that does not exist or is denied."""
        if bucket in self.denied:
            raise RejectedError(403, f"the account does not have storage.objects access to {bucket}")
        if bucket not in self.buckets:
            raise RejectedError(404, f"The specified bucket does not exist: {bucket}")
        return self.buckets[bucket]

    def get(self, bucket: str, name: str, query: Mapping[str, str]) -> Object:
        """Return an object; reject the request if it does not exist, is of another generation, or a precondition fails."""
        with self.lock:
            stored = self.find_bucket(bucket).get(name)
            if stored is None or query.get("generation", str(stored.generation)) != str(stored.generation):
                raise RejectedError(404, f"No such object: {bucket}/{name}")
            check_preconditions(stored, query)
            return stored

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Remove an object; reject the request as `get` does, or if the bucket retains its objects."""
        with self.lock:
            self.get(bucket, name, query)
            self._check_retention(bucket, name)
            del self.buckets[bucket][name]

    def _check_retention(self, bucket: str, name: str) -> None:
        """Reject a change of an object in a bucket with a retention policy."""
        if bucket in self.retained:
            raise RejectedError(
                403,
                f"Object '{bucket}/{name}' is subject to bucket's retention policy or object retention and cannot be deleted or"
                " overwritten until 2099-01-01T00:00:00Z",
            )

    def check_payer(self, bucket: str, *projects: str | None) -> None:
        """Reject a request to a bucket whose requesters pay, unless it names projects that may pay.

        Args:
            bucket: the bucket.
            projects: the projects that the query and the headers of the request name, each None if it names none.
        """
        payers = self.requester_pays.get(bucket)
        if payers is None:
            return
        named_projects = {project for project in projects if project is not None}
        if not named_projects:
            raise RejectedError(400, "Bucket is a requester pays bucket but no user project provided.")
        if named_projects - payers:
            account = "nobody@test.iam.gserviceaccount.com"
            raise RejectedError(
                403, f"{account} does not have serviceusage.services.use access to the Google Cloud project."
            )

    def list_page(self, bucket: str, query: Mapping[str, str], most: int) -> Page:
        """Return the page of a listing that a query requests, of at most `most` folders and objects.

        A page token is the last name of the page before.
        """
        prefix, delimiter, last_name = query.get("prefix", ""), query.get("delimiter"), query.get("pageToken", "")
        # A copy, since other threads may change the bucket.
        with self.lock:
            objects = dict(self.find_bucket(bucket))
        # None for a folder.
        entries: dict[str, Object | None] = {}
        for name, stored in objects.items():
            if not name.startswith(prefix) or not query.get("startOffset", "") <= name:
                continue
            if "endOffset" in query and name >= query["endOffset"]:
                continue
            head, separator, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            folder = prefix + head + separator
            # The placeholder of a folder: an object whose name ends with the delimiter.
            lists_as_object = head + separator == name and query.get("includeTrailingDelimiter") == "true"
            if separator and not lists_as_object:
                entries[folder] = None
            else:
                entries[name] = stored
        # The page before ended with a folder: an entry that is None, not a missing one.
        repeats_last = self.repeats_folders and last_name in entries and entries[last_name] is None
        names = sorted(name for name in entries if name > last_name or (repeats_last and name == last_name))
        page_names = names[: min(most, int(query.get("maxResults", most)))]
        return Page(
            prefixes=[name for name in page_names if entries[name] is None],
            objects={name: entry for name in page_names if (entry := entries[name]) is not None},
            next_token=page_names[-1] if page_names and len(page_names) < len(names) else None,
        )

    def start_upload(self, upload: Upload) -> str:
        """Begin an upload, if its preconditions hold; return its id."""
        with self.lock:
            check_preconditions(self.find_bucket(upload.bucket).get(upload.name), upload.query)
            upload_id = f"secret-upload-{next(self._numbers)}"
            self.uploads[upload_id] = upload
            return upload_id

    def finish_upload(self, upload_id: str, data: bytes) -> Object:
        """Store the object of an upload, if its preconditions still hold; return it.

        Args:
            upload_id: the upload's id.
            data: the object's bytes.
        """
        with self.lock:
            upload = self.uploads.pop(upload_id)
            upload.result = self.put(upload.bucket, upload.name, data, upload.encoding, upload.kind, upload.query)
            self.finished[upload_id] = upload
            return upload.result

    def issue_token(self) -> str:
        """Issue a token."""
        with self.lock:
            token = f"secret-token-{next(self._numbers)}"
            self._tokens.add(token)
            return token

    def expire_tokens(self) -> None:
        """Reject all issued tokens from now on."""
        with self.lock:
            self._expired |= self._tokens

    def renew_tokens(self) -> None:
        """Accept expired tokens again, since TensorFlow keeps one for an hour even if the store rejects it."""
        with self.lock:
            self._expired.clear()

    def check_token(self, header: str | None) -> None:
        """Reject a header Authorization with an unknown or expired token, and a missing one if tokens are required."""
        if header is None and not self.needs_token:
            return
        if header is None or header.removeprefix("Bearer ") not in self._tokens - self._expired:
            raise RejectedError(401, "Invalid Credentials")


def check_preconditions(current: Object | None, query: Mapping[str, str]) -> None:
    """Reject a query with a precondition that does not hold.

    Args:
        current: the current generation of the object; None if there is no object, which counts as generation 0.
        query: the query.
    """
    # The store does not count changes of metadata: the metageneration of every object is 1.
    generation, metageneration = (current.generation, 1) if current else (0, 0)
    for name in _PRECONDITIONS:
        if name in query:
            is_equal = int(query[name]) == (metageneration if "Meta" in name else generation)
            # ifGenerationNotMatch and ifMetagenerationNotMatch require a different number.
            must_differ = "Not" in name
            if is_equal == must_differ:
                raise RejectedError(412, "At least one of the pre-conditions you specified did not hold.")
