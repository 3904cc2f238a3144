"""Writing an object in one resumable upload, which survives lost parts and lost answers.

A part is kept until the store has it. Where a request fails, the store is asked how much has come, and gets the rest. The last
part carries the checksum of all: the store refuses an object of other bytes. It makes the object only where the one that stood
there at first still stands there, so that two writers never mix.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any
from urllib.parse import quote, urlencode

import google_crc32c
import requests
from google.api_core import exceptions as api

from tpudata.storage._gcs_session import DamagedError, Session

# Of each request; a multiple of 256 KiB, as the store wants. At tens of milliseconds a request, one writer stays above 100 MB/s.
PART_BYTES = 8 << 20
_INCOMPLETE, _BAD_REQUEST, _GONE = 308, 400, 410
_FORGOTTEN = (404, _GONE)


def object_url(bucket: str, name: str) -> str:
    """Where the JSON API has an object."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def checksum_text(crc32c: int) -> str:
    """A checksum as the API writes it."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


class UploadLostError(Exception):
    """The store has forgotten a part that it had, or the upload."""


class ObjectWriter(io.RawIOBase):
    """An object that is being written; nobody sees it before `finish`.

    Args:
        session: sends the requests.
        bucket, name: of the object.
        generation: of the object that is there, 0 for none.
    """

    def __init__(self, session: Session, bucket: str, name: str, generation: int) -> None:
        super().__init__()
        self._session = session
        self._bucket, self._name = bucket, name
        query = {"uploadType": "resumable", "name": name, "ifGenerationMatch": str(generation)}
        self._start_url = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(query)}"
        self._url: str | None = None
        # Bytes that no request has delivered for certain, and how many were delivered before them.
        self._buffer = bytearray()
        self._delivered = 0
        self._crc32c = 0
        # Another object stood there before the upload could begin: nothing is sent, and at the end it is looked at.
        self._too_late: api.PreconditionFailed | None = None

    def writable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Number of bytes so far."""
        return self._delivered + len(self._buffer)

    def write(self, data: Any, /) -> int:
        """Takes all of `data`, any bytes-like object; returns its length in bytes."""
        if self.closed:
            raise ValueError("write to closed file")
        data = bytes(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._buffer += data
        # Some are kept for the last part, which says that it is the last.
        while len(self._buffer) > PART_BYTES:
            self._deliver(PART_BYTES)
        return len(data)

    def begin(self) -> None:
        """Begin the upload before there is anything to send; an error of the API if the store does not allow it."""
        self._url = self._session.patiently(self._start)

    def finish(self) -> None:
        """Sends the rest, and makes the object.

        Raises:
            google.api_core.exceptions.PreconditionFailed: another writer was there first, with other bytes.
            DamagedError: the store got other bytes than were written; it has no object of them.
        """
        if self._delivered:
            self._end()
        else:
            # All of it is still here, so that it can be sent anew.
            self._session.patiently(self._end_anew)
        self.close()

    def abandon(self) -> None:
        """Ends the upload without an object; the store would keep the parts for a week."""
        self._buffer.clear()
        self.close()
        if self._url is not None:
            self._session.request("DELETE", self._url)

    @property
    def crc32c(self) -> str:
        """Checksum of what was written, as the API has it."""
        return checksum_text(self._crc32c)

    def _end_anew(self) -> None:
        try:
            self._end()
        except DamagedError:
            self._url = None
            raise

    def _end(self) -> None:
        try:
            made = self._deliver(len(self._buffer), is_last=True)
        except api.PreconditionFailed:
            # Where another worker wrote the same bytes first, that is as good.
            if not self._stands_there():
                raise
            return
        except (api.ClientError, UploadLostError) as error:
            code = error.code if isinstance(error, api.ClientError) else _GONE
            if code == _BAD_REQUEST and "crc32c" in str(error).lower():
                raise DamagedError from error
            # An upload that was finished is forgotten after a while, also where its last answer was lost.
            if code not in _FORGOTTEN or not self._stands_there():
                raise
            return
        if made is not None and made.get("crc32c", self.crc32c) != self.crc32c:
            query = urlencode({"ifGenerationMatch": made["generation"]})
            self._session.request("DELETE", f"{object_url(self._bucket, self._name)}?{query}")
            raise DamagedError

    def _deliver(self, size: int, *, is_last: bool = False) -> dict[str, Any] | None:
        """Sends the first `size` bytes of the buffer, and removes them; returns what the store says of the object made."""
        if self._url is None and self._too_late is None:
            try:
                self._url = self._session.patiently(self._start)
            except api.PreconditionFailed as error:
                self._too_late = error
        if self._too_late is not None:
            if is_last:
                raise self._too_late
            del self._buffer[:size]
            self._delivered += size
            return None
        begin, part, unsure = self._delivered, bytes(memoryview(self._buffer)[:size]), False
        total = str(begin + size) if is_last else "*"

        def send() -> dict[str, Any] | None:
            nonlocal unsure
            offset = begin
            if unsure:
                # A request failed: how much has come is asked.
                done, offset = self._put({"Content-Range": f"bytes */{total}"}, b"")
                if done is not None:
                    return done
                if not begin <= offset <= begin + size:
                    raise UploadLostError(f"byte {begin} was delivered, and the store wants byte {offset} next")
            unsure = True
            while is_last or offset < begin + size:
                first = offset - begin
                span = f"{offset}-{begin + size - 1}" if first < size else "*"
                headers = {"Content-Range": f"bytes {span}/{total}"}
                if is_last:
                    headers["X-Goog-Hash"] = f"crc32c={self.crc32c}"
                done, after = self._put(headers, part[first:])
                if done is not None:
                    return done
                if after <= offset:
                    raise requests.ConnectionError("the store took nothing of a part")
                offset = after
            return None

        made = self._session.patiently(send)
        del self._buffer[:size]
        self._delivered += size
        return made

    def _start(self) -> str:
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}
        return str(self._session.request("POST", self._start_url, headers, b"{}").headers["Location"])

    def _put(self, headers: dict[str, str], data: bytes) -> tuple[dict[str, Any] | None, int]:
        """Sends bytes, or a question; returns what the store says of the finished object, or None and how many bytes it has."""
        assert self._url is not None
        response = self._session.request("PUT", self._url, headers, data)
        if response.status_code != _INCOMPLETE:
            made: dict[str, Any] = json.loads(response.content or b"{}")
            return made, 0
        came = response.headers.get("Range")
        return None, int(came.rpartition("-")[2]) + 1 if came else 0

    def _stands_there(self) -> bool:
        """Whether the object has the bytes that were written."""

        def look() -> bool:
            found = self._session.request("GET", f"{object_url(self._bucket, self._name)}?fields=size,crc32c").json()
            return (int(found["size"]), found.get("crc32c")) == (self.tell(), self.crc32c)

        try:
            return self._session.patiently(look)
        except api.NotFound:
            return False
