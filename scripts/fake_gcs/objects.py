"""State of the store: buckets, objects with generations, unfinished uploads, and issued tokens."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import itertools
import threading
from collections.abc import Mapping
from typing import Any

import google_crc32c

# Parts of an upload are multiples of this, but for the last.
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
        generation: larger than that of any object before it.
        encoding: its Content-Encoding.
        kind: its Content-Type.
    """

    data: bytes
    generation: int
    encoding: str | None = None
    kind: str = "application/octet-stream"

    @functools.cached_property
    def crc32c(self) -> str:
        """As the API writes it: base64 of the big-endian bytes."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @functools.cached_property
    def md5(self) -> str:
        """Base64 of the digest."""
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    @property
    def hashes(self) -> str:
        """As in the header x-goog-hash."""
        return f"crc32c={self.crc32c},md5={self.md5}"

    def resource(self, bucket: str, name: str) -> dict[str, Any]:
        """Return what the JSON API says of it."""
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
    """A resumable upload: under way, or done, and then `result` is the object."""

    bucket: str
    name: str
    said: Mapping[str, str]
    encoding: str | None
    kind: str
    data: bytearray = dataclasses.field(default_factory=bytearray)
    result: Object | None = None


class Objects:
    """The state; its methods raise `RejectedError`, and may be called by several threads.

    Attributes:
        buckets: objects by bucket and name.
        uploads: those under way, by id.
        denied: buckets that nobody may touch.
        retained: buckets whose objects may be neither replaced nor deleted.
        requester_pays: projects that may pay, by bucket; other buckets ask for none.
        uploads_at: scheme and host to which resumable uploads are sent, None for those of the request.
        needs_token: whether a request without a token is rejected.
        repeats_folders: whether a page of a listing begins with the folder that the page before has ended with.
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
        """Make a bucket, unless it is there; return its objects."""
        return self.buckets.setdefault(name, {})

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        encoding: str | None = None,
        kind: str = "application/octet-stream",
        said: Mapping[str, str] | None = None,
    ) -> Object:
        """Store an object as a new generation, if the preconditions that are `said` hold."""
        with self.lock:
            objects = self.opened(bucket)
            check_preconditions(objects.get(name), said or {})
            if name in objects:
                self._check_retention(bucket, name)
            objects[name] = Object(data, next(self._generations), encoding, kind)
            return objects[name]

    def opened(self, bucket: str) -> dict[str, Object]:
        """Return the objects of a bucket that is there and may be touched."""
        if bucket in self.denied:
            raise RejectedError(403, f"the account does not have storage.objects access to {bucket}")
        if bucket not in self.buckets:
            raise RejectedError(404, f"The specified bucket does not exist: {bucket}")
        return self.buckets[bucket]

    def get(self, bucket: str, name: str, said: Mapping[str, str]) -> Object:
        """Return an object, of the generation that is asked for."""
        with self.lock:
            found = self.opened(bucket).get(name)
            if found is None or said.get("generation", str(found.generation)) != str(found.generation):
                raise RejectedError(404, f"No such object: {bucket}/{name}")
            check_preconditions(found, said)
            return found

    def delete(self, bucket: str, name: str, said: Mapping[str, str]) -> None:
        """Remove an object."""
        with self.lock:
            self.get(bucket, name, said)
            self._check_retention(bucket, name)
            del self.buckets[bucket][name]

    def _check_retention(self, bucket: str, name: str) -> None:
        if bucket in self.retained:
            raise RejectedError(
                403,
                f"Object '{bucket}/{name}' is subject to bucket's retention policy or object retention and cannot be deleted or"
                " overwritten until 2099-01-01T00:00:00Z",
            )

    def check_payer(self, bucket: str, *projects: str | None) -> None:
        """Raise if a bucket asks for a project that pays, and there is none, or one that may not."""
        payers = self.requester_pays.get(bucket)
        if payers is None:
            return
        named = {project for project in projects if project is not None}
        if not named:
            raise RejectedError(400, "Bucket is a requester pays bucket but no user project provided.")
        if named - payers:
            account = "nobody@test.iam.gserviceaccount.com"
            raise RejectedError(
                403, f"{account} does not have serviceusage.services.use access to the Google Cloud project."
            )

    def names(self, bucket: str, said: Mapping[str, str], most: int) -> tuple[list[str], dict[str, Object], str | None]:
        """Return a page of a listing: prefixes, objects by name, and the token of the next page."""
        prefix, delimiter, after = said.get("prefix", ""), said.get("delimiter"), said.get("pageToken", "")
        limit = min(most, int(said.get("maxResults", most)))
        with self.lock:
            objects = dict(self.opened(bucket))
        found: dict[str, Object | None] = {}
        for name, stored in objects.items():
            if not name.startswith(prefix) or not said.get("startOffset", "") <= name:
                continue
            if "endOffset" in said and name >= said["endOffset"]:
                continue
            head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut and not (
                name.endswith(cut) and said.get("includeTrailingDelimiter") == "true" and head + cut == name
            ):
                found[prefix + head + cut] = None
            else:
                found[name] = stored
        again = {after} if self.repeats_folders and found.get(after, ...) is None else set()
        names = sorted(name for name in found if name > after or name in again)
        page = names[:limit]
        token = page[-1] if page and len(page) < len(names) else None
        items = {name: item for name in page if (item := found[name]) is not None}
        return [name for name in page if found[name] is None], items, token

    def start_upload(self, upload: Upload) -> str:
        """Begins an upload; returns its id."""
        with self.lock:
            check_preconditions(self.opened(upload.bucket).get(upload.name), upload.said)
            number = f"secret-upload-{next(self._numbers)}"
            self.uploads[number] = upload
            return number

    def finish_upload(self, number: str, data: bytes) -> Object:
        """End an upload with an object, if its preconditions hold; `data` is what came of its bytes."""
        with self.lock:
            upload = self.uploads.pop(number)
            upload.result = self.put(upload.bucket, upload.name, data, upload.encoding, upload.kind, upload.said)
            self.finished[number] = upload
            return upload.result

    def new_token(self) -> str:
        """Give out a token."""
        with self.lock:
            token = f"secret-token-{next(self._numbers)}"
            self._tokens.add(token)
            return token

    def expire_tokens(self) -> None:
        """No token that was given out is good any more."""
        with self.lock:
            self._expired |= self._tokens

    def renew_tokens(self) -> None:
        """Accept expired tokens again, since TensorFlow keeps one for an hour even if the store rejects it."""
        with self.lock:
            self._expired.clear()

    def check_token(self, header: str | None) -> None:
        """Raise if the token is wrong, or missing although it is required."""
        if header is None and not self.needs_token:
            return
        if header is None or header.removeprefix("Bearer ") not in self._tokens - self._expired:
            raise RejectedError(401, "Invalid Credentials")


def check_preconditions(current: Object | None, said: Mapping[str, str]) -> None:
    """Raise if the present generation is not the expected one; 0 stands for none."""
    known = {"Generation": current.generation if current else 0, "Metageneration": 1 if current else 0}
    for name in _PRECONDITIONS:
        if name in said:
            is_equal = known["Metageneration" if "Meta" in name else "Generation"] == int(said[name])
            if is_equal == ("Not" in name):
                raise RejectedError(412, "At least one of the pre-conditions you specified did not hold.")
