"""Uploads: in one request, or resumable in parts, with requests for the received size."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import quote, urlencode

import google_crc32c

from scripts.fake_gcs.objects import PART_BYTES, Objects, RejectedError, Upload
from scripts.fake_gcs.requests import Answer, Request, make_json_answer

_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-\d+|\*)/(?P<total>\d+|\*)")
_HASH = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")
_NO_UPLOAD = "there is no such upload (any more)"


def start(store: Objects, request: Request) -> Answer:
    """Begin a resumable upload, or store the object of a request that contains all of it."""
    kind = request.query.get("uploadType")
    if kind == "resumable":
        upload = _make_upload(request, request.json(), request.headers.get("x-upload-content-type"))
        upload_id = store.start_upload(upload)
        query = urlencode({"uploadType": "resumable", "name": upload.name, "upload_id": upload_id})
        location = f"{store.uploads_at or request.base}/upload/storage/v1/b/{quote(request.bucket)}/o?{query}"
        return Answer(200, b"", {"Location": location})
    if kind == "multipart":
        upload, content = _parse_multipart(request)
    elif kind == "media":
        upload, content = _make_upload(request, {}, request.headers.get("content-type")), request.body
    else:
        raise RejectedError(400, f"uploadType={kind}")
    upload_id = store.start_upload(upload)
    upload.data += content
    return _finish(store, request, upload_id)


def _parse_multipart(request: Request) -> tuple[Upload, bytes]:
    """Return the upload and the content of a multipart request, whose parts are the metadata and the content."""
    message = request.parse_parts()
    metadata_part, content_part = message.iter_parts()
    # Not from the parser, which splits text into lines: the bytes after the second head, up to the last boundary.
    boundary = message.get_boundary()
    assert boundary is not None
    body = request.body[: request.body.rindex(b"\r\n--" + boundary.encode() + b"--")]
    content = body[body.index(b"\r\n\r\n", body.index(b"\r\n\r\n") + 4) + 4 :]
    if metadata_part.get_content_maintype() == "text":
        metadata = json.loads(metadata_part.get_content())
    else:
        payload = metadata_part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        metadata = json.loads(payload)
    return _make_upload(request, metadata, content_part.get_content_type()), content


def asks_for_status(request: Request) -> bool:
    """Return whether a request for an upload only asks for the size that was received."""
    match = _CONTENT_RANGE.fullmatch(request.headers.get("content-range", ""))
    # `bytes */TOTAL` asks for the size, except that `bytes */0` sends the end of an empty object.
    return match is not None and match["first"] is None and match["total"] != "0"


def continue_upload(store: Objects, request: Request) -> Answer:
    """Add a part to an upload, and finish it with its last part; answer with the object or the received size."""
    upload_id = request.query["upload_id"]
    # A client that got no answer sends the last part again.
    finished = store.finished.get(upload_id)
    if finished is not None and finished.result is not None:
        return make_json_answer(finished.result.make_resource(finished.bucket, finished.name))
    upload = store.uploads.get(upload_id)
    if upload is None:
        raise RejectedError(410, _NO_UPLOAD)
    header = request.headers.get("content-range")
    match = _CONTENT_RANGE.fullmatch(header) if header else None
    if header and match is None:
        raise RejectedError(400, f"Content-Range: {header}")
    # Without the header, the body is the whole object. The total is * until the last part.
    first, total = match.group("first", "total") if match else ("0", str(len(request.body)))
    if first is not None:
        _add_part(upload, request, int(first), is_last=total != "*")
    if not request.is_cut and total != "*" and len(upload.data) == int(total):
        if hash_match := _HASH.search(request.headers.get("x-goog-hash", "")):
            upload.crc32c = hash_match[1]
        return _finish(store, request, upload_id)
    return Answer(308, b"", {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {})


def abandon(store: Objects, request: Request) -> Answer:
    """Remove an unfinished upload."""
    if store.uploads.pop(request.query["upload_id"], None) is None:
        raise RejectedError(410, _NO_UPLOAD)
    # The code of Google's store for an upload that its client ends.
    return Answer(499, b"", {})


def _add_part(upload: Upload, request: Request, first: int, *, is_last: bool) -> None:
    """Add a request's body to an upload; bytes that are there already are skipped.

    Args:
        upload: the upload.
        request: the request.
        first: offset of the body in the object.
        is_last: whether the request sends the last part, which may have any size.
    """
    if first > len(upload.data):
        raise RejectedError(503, f"byte {len(upload.data)} is the next, not {first}")
    if not is_last and len(request.body) % PART_BYTES and not request.is_cut:
        raise RejectedError(
            400, f"a part of {len(request.body)} bytes; all but the last have a multiple of {PART_BYTES}"
        )
    new_bytes = request.body[len(upload.data) - first :]
    # As Google's store does, keep a multiple of PART_BYTES of a part whose connection ended.
    upload.data += new_bytes[: len(new_bytes) // PART_BYTES * PART_BYTES] if request.is_cut else new_bytes


def _finish(store: Objects, request: Request, upload_id: str) -> Answer:
    """Store the object of an upload whose bytes were all received, if they have the checksum that the client sent."""
    upload = store.uploads[upload_id]
    data = request.corrupt(bytes(upload.data))
    crc32c = google_crc32c.value(data).to_bytes(4, "big")
    if upload.crc32c is not None and base64.b64decode(upload.crc32c) != crc32c:
        del store.uploads[upload_id]
        raise RejectedError(400, f"Provided CRC32C {upload.crc32c!r} doesn't match the bytes that came.")
    stored = store.finish_upload(upload_id, data)
    return make_json_answer(stored.make_resource(upload.bucket, upload.name))


def _make_upload(request: Request, metadata: dict[str, Any], kind: str | None) -> Upload:
    """Return the upload that a request begins, and set the request's name.

    Args:
        request: the request.
        metadata: the object's metadata in the request.
        kind: its Content-Type if the metadata has none.
    """
    request.name = request.query.get("name") or metadata.get("name") or ""
    if not request.name:
        raise RejectedError(400, "Required: name")
    return Upload(
        request.bucket,
        request.name,
        request.query,
        encoding=metadata.get("contentEncoding") or request.query.get("contentEncoding"),
        kind=metadata.get("contentType") or kind or "application/octet-stream",
        crc32c=metadata.get("crc32c"),
    )
