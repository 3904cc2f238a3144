"""Writing an object: a small one in one request, a larger one in a resumable upload, which survives lost requests and answers.

A part is kept until the store has it. If a request fails, the store is asked how much it received, and gets the rest; a small
object is sent again. The only or the last part carries the checksum of all data, so the store rejects damage. It makes the object
only if the generation that existed at first is still there, so two writers never mix. The object counts as made when
the answer gives its generation, size and checksum, or a later description gives them.

The BlobWriter of google-cloud-storage (3.17) does less: if it is garbage-collected after an abort that failed, it makes an object
of the data so far; it fails if the store has received less than it sent; and it drops the answer, which proves the object.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import google_crc32c

from tpudata.storage.gcs.answers import describe_object, encode_checksum, make_object_url, parse_description
from tpudata.storage.gcs.transport import Answer, Transport
from tpudata.storage.objects.errors import (
    AnswerError,
    ConflictError,
    DamagedError,
    UnprovenError,
    UploadLostError,
)
from tpudata.storage.objects.object_store import Description

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Bytes of a request; the store requires a multiple of 256 KiB. At tens of milliseconds a request, one writer exceeds 100 MB/s.
PART_BYTES = 8 << 20
# Largest object that is sent in one request: sending it again takes less time than asking how much was received.
_WHOLE_BYTES = 1 << 20
# Status codes.
_INCOMPLETE, _BAD_REQUEST, _GONE = 308, 400, 410
_FORGOTTEN = (404, _GONE)
_RECEIVED_RANGE = re.compile(r"bytes=0-(\d+)")


class ObjectWriter(io.RawIOBase):
    """An object that is being written; it is invisible before `finish`.

    Args:
        transport: sends the requests.
        bucket: bucket of the object.
        name: name of the object.
        generation: generation of the existing object; 0 if the object does not exist.
        part_bytes: bytes of a request, a multiple of 256 KiB.
    """

    def __init__(
        self, transport: Transport, bucket: str, name: str, generation: int, part_bytes: int = PART_BYTES
    ) -> None:
        super().__init__()
        self._part_bytes = part_bytes
        self._transport = transport
        self._bucket = bucket
        self._name = name
        self._generation = generation
        # Address of the resumable upload, once it has begun.
        self._url: str | None = None
        # Bytes whose delivery is not confirmed, and the number of bytes before them.
        self._buffer = bytearray()
        self._delivered_bytes = 0
        self._crc32c = 0
        # Set if another writer was first: nothing is sent, and `finish` compares the existing object with the data.
        self._conflict: ConflictError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._delivered_bytes + len(self._buffer)

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`, a bytes-like object of any kind; return its length in bytes."""
        if self.closed:
            raise ValueError("write to closed file")
        data = bytes(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._buffer += data
        # Keep some bytes: the last part must be marked as the last, so it cannot be empty.
        while len(self._buffer) > self._part_bytes:
            self._deliver(self._part_bytes)
        return len(data)

    def begin(self) -> None:
        """Begin the upload before there is data; raise an error of the API if the store does not allow it."""
        self._url = self._transport.retries.run(self._request_upload)

    def finish(self) -> None:
        """Send the remaining data, which completes the object.

        Raises:
            ConflictError: another writer was first, with different bytes.
            DamagedError: the store received damaged data, and keeps no object of it.
            UploadLostError: the store lost the upload, or a part that it had confirmed.
            TimeLimitError: a request kept failing until the limit of the retries.
        """
        if self._delivered_bytes:
            self._send_last()
        else:
            # All data is still in the buffer, so it can be sent again from the start.
            self._transport.retries.run(self._send_last_or_restart)
        self.close()

    def abandon(self) -> None:
        """Cancel the upload; otherwise the store would keep the parts for a week."""
        self._buffer.clear()
        self.close()
        if self._url is not None:
            self._transport.request("DELETE", self._url)

    @property
    def _encoded_crc32c(self) -> str:
        """Checksum of the data, as the API writes it."""
        return encode_checksum(self._crc32c)

    def _send_last_or_restart(self) -> None:
        """Send the last part; if it arrives damaged, the next call begins another upload."""
        try:
            self._send_last()
        except DamagedError:
            self._url = None
            raise

    def _send_last(self) -> None:
        """Send the last part; an object with the same bytes that another writer made counts as made by this one."""
        try:
            if self._url is None and not self._delivered_bytes and len(self._buffer) <= _WHOLE_BYTES:
                self._send_whole()
            else:
                self._deliver(len(self._buffer), is_last=True)
        except ConflictError:
            # Another worker may have written the same bytes first.
            if not self._has_stored_data():
                raise
        except (AnswerError, UploadLostError) as error:
            code = error.code if isinstance(error, AnswerError) else _GONE
            # The store's answer to data that does not match the checksum in the request.
            if code == _BAD_REQUEST and "crc32c" in str(error).lower():
                raise DamagedError from error
            # The store forgets finished uploads, so a retry after a lost answer may get 404 or 410.
            if code not in _FORGOTTEN or not self._has_stored_data():
                raise

    def _check_stored(self, answer_description: Description | None) -> None:
        """Check that the store has the object with the data that was written.

        Args:
            answer_description: description in the store's answer; None if the answer has no valid one.

        Raises:
            UnprovenError: neither the answer nor the stored object proves it.
            DamagedError: the object contains different bytes; it is removed.
        """
        if answer_description is not None and self._matches_data(answer_description):
            return
        stored_description = self._describe()
        # The object that existed before the upload is still there, so the upload made none.
        if stored_description is None or stored_description.version == self._generation:
            raise UnprovenError("an answer that an upload is complete, but no object")
        # If the description has no checksum, the checksum that was sent with the data counts: the store has compared it.
        if stored_description.size == self.tell() and stored_description.crc32c in (None, self._crc32c):
            return
        if answer_description is None or answer_description.version != stored_description.version:
            raise UnprovenError("an answer that an upload is complete, but another object")
        # Only the version of this upload is removed, not a version that another writer has made since.
        query = urlencode({"ifGenerationMatch": answer_description.version})
        self._transport.request("DELETE", f"{make_object_url(self._bucket, self._name)}?{query}")
        raise DamagedError

    def _matches_data(self, description: Description) -> bool:
        return (description.size, description.crc32c) == (self.tell(), self._crc32c)

    def _deliver(self, size: int, *, is_last: bool = False) -> None:
        """Send the first `size` bytes of the buffer, and remove them from it; the last part completes the object.

        Raises:
            ConflictError: this is the last part, and another writer was first.
            UploadLostError: the store has lost bytes that it had confirmed.
        """
        if self._url is None and self._conflict is None:
            try:
                self._url = self._transport.retries.run(self._request_upload)
            except ConflictError as error:
                self._conflict = error
        # Another writer was first, so the bytes are dropped. At the end, `_send_last` catches the error, and compares the existing
        # object with the checksum and the length of the data.
        if self._conflict is not None:
            if is_last:
                raise self._conflict
            del self._buffer[:size]
            self._delivered_bytes += size
            return
        begin = self._delivered_bytes
        part = bytes(memoryview(self._buffer)[:size])
        is_retry = False
        # `*` stands for an unknown size.
        total = str(begin + size) if is_last else "*"

        def send() -> None:
            """Send the part, or what the store has not received of it."""
            nonlocal is_retry
            offset = begin
            if is_retry:
                # A request failed: ask how much was received.
                received_bytes = self._put({"Content-Range": f"bytes */{total}"}, b"", is_last=is_last)
                if received_bytes is None:  # The object is complete.
                    return
                if not begin <= received_bytes <= begin + size:
                    raise UploadLostError(
                        f"byte {begin} was confirmed, but the store expects byte {received_bytes} next"
                    )
                offset = received_bytes
            is_retry = True
            # The last part is sent even if no bytes remain, since it completes the object.
            while is_last or offset < begin + size:
                part_offset = offset - begin
                # Here `*` stands for no bytes.
                span = f"{offset}-{begin + size - 1}" if part_offset < size else "*"
                headers = {"Content-Range": f"bytes {span}/{total}"}
                if is_last:
                    headers["X-Goog-Hash"] = f"crc32c={self._encoded_crc32c}"
                received_bytes = self._put(headers, part[part_offset:], is_last=is_last)
                if received_bytes is None:
                    return
                if not offset < received_bytes <= begin + size:
                    raise UnprovenError("the store received nothing of a part")
                offset = received_bytes

        self._transport.retries.run(send)
        del self._buffer[:size]
        self._delivered_bytes += size

    def _send_whole(self) -> None:
        """Make the object in one request: its description with the checksum, and its bytes."""
        boundary = uuid.uuid4().hex
        description = json.dumps({"name": self._name, "crc32c": self._encoded_crc32c})
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{description}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        body = b"".join((head.encode(), self._buffer, f"\r\n--{boundary}--\r\n".encode()))
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self._check_answer(self._transport.request("POST", self._make_upload_url("multipart"), headers, body))

    def _make_upload_url(self, upload_type: str) -> str:
        """Return the address of a `multipart` or `resumable` upload, which replaces only the generation that existed at first."""
        query = {"uploadType": upload_type, "name": self._name, "ifGenerationMatch": str(self._generation)}
        return f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o?{urlencode(query)}"

    def _request_upload(self) -> str:
        """Begin a resumable upload, and return its address.

        Raises:
            UnprovenError: the answer has no address of an upload on the store's server.
        """
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}
        answer = self._transport.request("POST", self._make_upload_url("resumable"), headers, b"{}")
        address = answer.headers.get("Location", "")
        if "upload_id=" not in address:
            raise UnprovenError("an answer that begins no upload")
        self._transport.check_address(address)
        return str(address)

    def _put(self, headers: dict[str, str], data: bytes, *, is_last: bool) -> int | None:
        """Send bytes, or a status request; return the number of bytes that the store has, or None if it has made the object.

        Args:
            headers: headers of the request, with the range of the bytes.
            data: the bytes; empty for a status request.
            is_last: whether the bytes complete the object.

        Raises:
            UnprovenError: the answer does not fit the request, or does not prove the object.
            DamagedError: the bytes of the object differ from those sent; it is removed.
        """
        assert self._url is not None
        answer = self._transport.request("PUT", self._url, headers, data)
        if answer.status == _INCOMPLETE:
            # "bytes=0-N" names the last received byte; without the header, none was received.
            match = _RECEIVED_RANGE.fullmatch(answer.headers.get("Range", ""))
            return int(match[1]) + 1 if match else 0
        if not is_last:
            raise UnprovenError(f"an answer {answer.status} to a part that is not the last")
        self._check_answer(answer)
        return None

    def _check_answer(self, answer: Answer) -> None:
        """Check the answer to a completed upload; raise as `_check_stored` does."""
        answer_description: Description | None = None
        with contextlib.suppress(UnprovenError):
            answer_description = parse_description(answer.data)
        self._check_stored(answer_description)

    def _has_stored_data(self) -> bool:
        """Return whether the stored object has the bytes that were written."""
        stored_description = self._describe()
        return stored_description is not None and self._matches_data(stored_description)

    def _describe(self) -> Description | None:
        return self._transport.retries.run(
            functools.partial(describe_object, self._transport, self._bucket, self._name)
        )
