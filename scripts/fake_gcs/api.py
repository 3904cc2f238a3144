"""Routes of requests, and the answers for buckets and objects; those for uploads are in `uploads`."""

from __future__ import annotations

import dataclasses
import email.parser
import email.policy
import gzip
import re
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from scripts.fake_gcs import uploads
from scripts.fake_gcs.objects import Object, Objects, RejectedError
from scripts.fake_gcs.requests import Answer, Request, error_answer, json_answer

Action: TypeAlias = "Callable[[Objects, Request], Answer]"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_JSON = "(?:/download)?/storage/v1"
# Default number of objects in a page of a listing.
MOST_LISTED = 1000


def route(request: Request) -> Action:
    """Return the function that answers a request, and fill in what the request is for."""
    for methods, pattern, operation, action in _ROUTES:
        found = pattern.fullmatch(request.path)
        if found and request.method in methods:
            groups = {name: unquote(value) for name, value in found.groupdict().items()}
            request.bucket, request.name = groups.get("bucket", ""), groups.get("name", "")
            request.said |= {f"_{name}": value for name, value in groups.items()}
            request.operation = operation
            if action is uploads.start and "upload_id" in request.said:
                action = uploads.go_on
                request.operation, request.name = "part", request.said.get("name", "")
                if request.method == "DELETE":
                    request.operation = "abandon"
                    return uploads.abandon
            if action is _object and request.said.get("alt") == "media":
                request.operation = "read"
            elif action is uploads.start and not request.name:
                request.name = request.said.get("name", "")
            elif action is uploads.go_on:
                uploads.look(request)
            return action
    raise RejectedError(404, f"this store has nothing at {request.method} {request.path}")


def _object(store: Objects, request: Request) -> Answer:
    found = store.get(request.bucket, request.name, request.said)
    if request.said.get("alt") == "media":
        return _media(found, request)
    return json_answer(found.resource(request.bucket, request.name))


def _xml_object(store: Objects, request: Request) -> Answer:
    return _media(store.get(request.bucket, request.name, request.said), request)


def _media(found: Object, request: Request) -> Answer:
    headers = {
        "X-Goog-Hash": found.hashes,
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Stored-Content-Length": str(len(found.data)),
        "X-Goog-Stored-Content-Encoding": found.encoding or "identity",
        "Content-Type": found.kind,
        "Accept-Ranges": "bytes",
    }
    if found.encoding == "gzip" and "gzip" not in request.headers.get("accept-encoding", ""):
        # Decompressive transcoding, which leaves ranges aside.
        return Answer(200, gzip.decompress(found.data), headers)
    if found.encoding:
        headers["Content-Encoding"] = found.encoding
    said, size = _RANGE.fullmatch(request.headers.get("range", "")), len(found.data)
    if said is None or said[0] == "bytes=-":
        return Answer(200, found.data, headers)
    if said[1]:
        start, end = int(said[1]), min(int(said[2] or size), size - 1)
    else:
        start, end = max(0, size - int(said[2])), size - 1
    if start >= size or end < start:
        raise RejectedError(416, "The requested range cannot be satisfied.")
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    # A view: parts of shards are large.
    return Answer(206, memoryview(found.data)[start : end + 1], headers)


def _delete(store: Objects, request: Request) -> Answer:
    store.delete(request.bucket, request.name, request.said)
    return Answer(204, b"", {})


def _change(store: Objects, request: Request) -> Answer:
    found = store.get(request.bucket, request.name, request.said)
    said = request.json()
    changed = dataclasses.replace(
        found, encoding=said.get("contentEncoding", found.encoding), kind=said.get("contentType", found.kind)
    )
    store.buckets[request.bucket][request.name] = changed
    return json_answer(changed.resource(request.bucket, request.name))


def _list(store: Objects, request: Request) -> Answer:
    prefixes, items, token = store.names(request.bucket, request.said, getattr(store, "page", MOST_LISTED))
    answer = {
        "kind": "storage#objects",
        "items": [item.resource(request.bucket, name) for name, item in items.items()],
        "prefixes": prefixes,
    }
    return json_answer({**answer, "nextPageToken": token} if token else answer)


def _copy(store: Objects, request: Request) -> Answer:
    said = request.said
    source = {key.removeprefix("ifSource"): value for key, value in said.items() if key.startswith("ifSource")}
    source = {f"if{key}": value for key, value in source.items()}
    if "sourceGeneration" in said:
        source["generation"] = said["sourceGeneration"]
    with store.lock:
        found = store.get(request.bucket, request.name, source)
        bucket, name = said["_to_bucket"], said["_to_name"]
        stored = store.put(bucket, name, found.data, found.encoding, found.kind, said)
    resource = stored.resource(bucket, name)
    if said["_verb"] == "copyTo":
        return json_answer(resource)
    size = str(len(stored.data))
    answer = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
    return json_answer({**answer, "resource": resource})


def _compose(store: Objects, request: Request) -> Answer:
    said = request.json()
    with store.lock:
        parts = [store.get(request.bucket, part["name"], {}) for part in said["sourceObjects"]]
        kind = said.get("destination", {}).get("contentType", parts[0].kind)
        data = b"".join(part.data for part in parts)
        stored = store.put(request.bucket, request.name, data, None, kind, request.said)
    return json_answer(stored.resource(request.bucket, request.name))


def _bucket(store: Objects, request: Request) -> Answer:
    objects = store.opened(request.bucket)
    if request.method == "DELETE":
        if objects:
            raise RejectedError(409, "The bucket you tried to delete is not empty.")
        del store.buckets[request.bucket]
        return Answer(204, b"", {})
    return json_answer(_bucket_resource(request.bucket))


def _bucket_resource(name: str) -> dict[str, str]:
    return {"kind": "storage#bucket", "id": name, "name": name, "location": "US", "locationType": "multi-region"}


def _layout(store: Objects, request: Request) -> Answer:
    store.opened(request.bucket)
    layout = {"kind": "storage#storageLayout", "bucket": request.bucket, "location": "US"}
    return json_answer({**layout, "locationType": "multi-region", "hierarchicalNamespace": {"enabled": False}})


def _buckets(store: Objects, request: Request) -> Answer:
    if request.method == "POST":
        name = request.json()["name"]
        if name in store.buckets:
            raise RejectedError(409, f"bucket {name} is there")
        store.bucket(name)
        return json_answer(_bucket_resource(name))
    return json_answer({"kind": "storage#buckets", "items": [_bucket_resource(name) for name in sorted(store.buckets)]})


def _token(store: Objects, request: Request) -> Answer:
    del request
    return json_answer({"access_token": store.new_token(), "expires_in": 3600, "token_type": "Bearer"})


def _impersonated_token(store: Objects, request: Request) -> Answer:
    del request
    return json_answer({"accessToken": store.new_token(), "expireTime": "2099-01-01T00:00:00Z"})


def _batch(store: Objects, request: Request) -> Answer:
    """Answer the requests in the parts of one body; the answer has a part for each."""
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
    boundary = f"batch_{uuid.uuid4().hex}"
    parts = []
    for part in message.iter_parts():
        inner = part.get_payload(decode=True)
        assert isinstance(inner, bytes)
        answer = _answer_part(store, request, inner)
        lines = [f"HTTP/1.1 {answer.code} {HTTPStatus(answer.code).phrase}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines.append(f"Content-Length: {len(answer.body)}")
        number = str(part.get("Content-ID", "")).strip("<>")
        head_lines = f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: <response-{number}>\r\n\r\n"
        parts.append(head_lines.encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body + b"\r\n")
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return Answer(200, body, {"Content-Type": f"multipart/mixed; boundary={boundary}"})


def _answer_part(store: Objects, outer: Request, data: bytes) -> Answer:
    head, _, body = data.lstrip().partition(b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n")
    first, *lines = head.decode().splitlines()
    method, target = first.split()[:2]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    parts = urlsplit(target)
    request = Request(method, parts.path, outer.base, dict(parse_qsl(parts.query)), headers, body)
    try:
        return route(request)(store, request)
    except RejectedError as error:
        return error_answer(error.code, error.message)


_B, _O = r"(?P<bucket>[^/]+)", r"(?P<name>.+)"
_TO = r"(?P<verb>rewriteTo|copyTo)/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>.+)"
_ROUTES: list[tuple[tuple[str, ...], re.Pattern[str], str, Action]] = [
    (methods, re.compile(pattern), operation, action)
    for methods, pattern, operation, action in (
        (("POST",), rf"{_JSON}/b/{_B}/o/{_O}/{_TO}", "copy", _copy),
        (("POST",), rf"{_JSON}/b/{_B}/o/{_O}/compose", "copy", _compose),
        (("GET",), rf"{_JSON}/b/{_B}/o/{_O}", "stat", _object),
        (("DELETE",), rf"{_JSON}/b/{_B}/o/{_O}", "delete", _delete),
        (("PATCH", "PUT"), rf"{_JSON}/b/{_B}/o/{_O}", "copy", _change),
        (("GET",), rf"{_JSON}/b/{_B}/o", "list", _list),
        (("GET",), rf"{_JSON}/b/{_B}/storageLayout", "bucket", _layout),
        (("GET", "DELETE"), rf"{_JSON}/b/{_B}", "bucket", _bucket),
        (("GET", "POST"), rf"{_JSON}/b", "bucket", _buckets),
        (("POST", "PUT", "DELETE"), rf"/(?:resumable/)?upload/storage/v1/b/{_B}/o", "upload", uploads.start),
        (("POST",), r"/batch/storage/v1", "batch", _batch),
        (("POST",), r"/(?:.*/)?token", "token", _token),
        (
            ("POST",),
            r"/v1/projects/-/serviceAccounts/(?P<account>[^/]+):generateAccessToken",
            "token",
            _impersonated_token,
        ),
        (("GET",), rf"/{_B}/{_O}", "read", _xml_object),
        (("HEAD",), rf"/{_B}/{_O}", "stat", _xml_object),
    )
]
