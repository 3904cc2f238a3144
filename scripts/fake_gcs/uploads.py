"""Uploads: in one request, or resumable in parts, with requests for the received size."""

from __future__ import annotations

import base64
import email.parser
import email.policy
import json
import re
from typing import Any
from urllib.parse import quote, urlencode

import google_crc32c

from scripts.fake_gcs.objects import PART_BYTES, Objects, RejectedError, Upload
from scripts.fake_gcs.requests import Answer, Request, json_answer

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_HASH = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")
# Hashes may be said before the bytes or with the last of them.
_CRC32C = "_crc32c"


def start(store: Objects, request: Request) -> Answer:
    """Begins a resumable upload, or takes an object that comes whole."""
    kind = request.said.get("uploadType")
    if kind == "resumable":
        said = request.json()
        name = _named(request, said)
        number = store.start_upload(_upload(request, said, request.headers.get("x-upload-content-type")))
        query = urlencode({"uploadType": "resumable", "name": name, "upload_id": number})
        location = f"{store.uploads_at or request.base}/upload/storage/v1/b/{quote(request.bucket)}/o?{query}"
        return Answer(200, b"", {"Location": location})
    if kind == "multipart":
        head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
        described, held = message.iter_parts()
        # The parser takes text apart by lines; the bytes are what stands between the boundaries.
        boundary = b"\r\n--" + message.get_boundary().encode() + b"--"  # type: ignore[union-attr]
        body = request.body[: request.body.rindex(boundary)]
        content = body[body.index(b"\r\n\r\n", body.index(b"\r\n\r\n") + 4) + 4 :]
        said = json.loads(described.get_content() if described.get_content_maintype() == "text" else _bytes(described))
        _named(request, said)
        upload = _upload(request, said, held.get_content_type())
    elif kind == "media":
        upload, content = _upload(request, {}, request.headers.get("content-type")), request.body
    else:
        raise RejectedError(400, f"uploadType={kind}")
    number = store.start_upload(upload)
    upload.data += content
    return _finished(store, request, number)


def look(request: Request) -> None:
    """Tells a part of an upload from the question how much has come."""
    said = _CONTENT_RANGE.fullmatch(request.headers.get("content-range", ""))
    if said is not None and said[1] is None and said[3] != "0":
        request.operation = "status"


def go_on(store: Objects, request: Request) -> Answer:
    """Take a part of an upload, or report how much has come."""
    number = request.said["upload_id"]
    done = store.finished.get(number)
    if done is not None and done.result is not None:
        return json_answer(done.result.resource(done.bucket, done.name))
    upload = store.uploads.get(number)
    if upload is None:
        raise RejectedError(410, "there is no such upload (any more)")
    header = request.headers.get("content-range")
    said = _CONTENT_RANGE.fullmatch(header) if header else None
    if header and said is None:
        raise RejectedError(400, f"Content-Range: {header}")
    total = str(len(request.body)) if said is None else said[3]
    if said is None or said[1] is not None:
        _take(upload, request, int(said[1]) if said else 0, is_last=total != "*")
    if not request.is_cut and total != "*" and len(upload.data) == int(total):
        if found := _HASH.search(request.headers.get("x-goog-hash", "")):
            upload.said = {**upload.said, _CRC32C: found[1]}
        return _finished(store, request, number)
    return Answer(308, b"", {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {})


def abandon(store: Objects, request: Request) -> Answer:
    """Forgets an upload."""
    if store.uploads.pop(request.said["upload_id"], None) is None:
        raise RejectedError(410, "there is no such upload (any more)")
    return Answer(499, b"", {})


def _take(upload: Upload, request: Request, first: int, *, is_last: bool) -> None:
    if first > len(upload.data):
        raise RejectedError(503, f"byte {len(upload.data)} is the next, not {first}")
    if not is_last and len(request.body) % PART_BYTES and not request.is_cut:
        raise RejectedError(
            400, f"a part of {len(request.body)} bytes; all but the last have a multiple of {PART_BYTES}"
        )
    fresh = request.body[len(upload.data) - first :]
    # What came of a part that was cut is kept in whole pieces.
    upload.data += fresh[: len(fresh) // PART_BYTES * PART_BYTES] if request.is_cut else fresh


def _finished(store: Objects, request: Request, number: str) -> Answer:
    upload = store.uploads[number]
    due = upload.said.get(_CRC32C)
    data = request.spoil(bytes(upload.data))
    if due is not None and base64.b64decode(due) != google_crc32c.value(data).to_bytes(4, "big"):
        del store.uploads[number]
        raise RejectedError(400, f"Provided CRC32C {due!r} doesn't match the bytes that came.")
    stored = store.finish_upload(number, data)
    return json_answer(stored.resource(upload.bucket, upload.name))


def _upload(request: Request, described: dict[str, Any], kind: str | None) -> Upload:
    said = dict(request.said)
    if "crc32c" in described:
        said[_CRC32C] = described["crc32c"]
    kind = described.get("contentType") or kind or "application/octet-stream"
    encoding = described.get("contentEncoding") or said.get("contentEncoding")
    return Upload(request.bucket, _named(request, described), said, encoding, kind)


def _named(request: Request, described: dict[str, Any]) -> str:
    request.name = request.said.get("name") or described.get("name") or ""
    if not request.name:
        raise RejectedError(400, "Required: name")
    return request.name


def _bytes(part: Any) -> bytes:
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    return data
