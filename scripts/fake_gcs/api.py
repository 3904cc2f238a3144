"""Routes of requests, and the answers for buckets and objects; `uploads` contains the answers for uploads."""

from __future__ import annotations

import dataclasses
import gzip
import re
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from scripts.fake_gcs import uploads
from scripts.fake_gcs.objects import Object, Objects, RejectedError
from scripts.fake_gcs.requests import Answer, Request, make_error_answer, make_json_answer

# Function that answers a request.
Action: TypeAlias = "Callable[[Objects, Request], Answer]"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_JSON = "(?:/download)?/storage/v1"
# Default number of objects in a page of a listing.
MAX_LISTED = 1000


def route(request: Request) -> Action:
    """Return the function that answers a request, and set the request's operation, bucket and name.

    Raises:
        RejectedError: the store has no such request.
    """
    for methods, pattern, operation, action in _ROUTES:
        match = pattern.fullmatch(request.path)
        if match is None or request.method not in methods:
            continue
        groups = {name: unquote(value) for name, value in match.groupdict().items()}
        request.bucket, request.name = groups.get("bucket", ""), groups.get("name", "")
        # For the destination of a copy; the names of a query's own parameters do not begin with "_".
        request.query |= {f"_{name}": value for name, value in groups.items()}
        request.operation = operation
        if action is uploads.start:
            return _route_upload(request)
        if action is _object and request.query.get("alt") == "media":
            request.operation = "read"
        return action
    raise RejectedError(404, f"this store has nothing at {request.method} {request.path}")


def _route_upload(request: Request) -> Action:
    """Return the function that starts, continues or abandons an upload, and set the request's operation and name."""
    request.name = request.query.get("name", "")
    if "upload_id" not in request.query:
        return uploads.start
    if request.method == "DELETE":
        request.operation = "abandon"
        return uploads.abandon
    request.operation = "status" if uploads.asks_for_status(request) else "part"
    return uploads.continue_upload


def _object(store: Objects, request: Request) -> Answer:
    """Answer with the content of an object, or with its resource."""
    stored = store.get(request.bucket, request.name, request.query)
    if request.query.get("alt") == "media":
        return _answer_content(stored, request)
    return make_json_answer(stored.make_resource(request.bucket, request.name))


def _xml_object(store: Objects, request: Request) -> Answer:
    return _answer_content(store.get(request.bucket, request.name, request.query), request)


def _answer_content(stored: Object, request: Request) -> Answer:
    """Answer with the content of an object, or with the requested range of it."""
    headers = {
        "X-Goog-Hash": stored.hashes,
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Stored-Content-Length": str(len(stored.data)),
        "X-Goog-Stored-Content-Encoding": stored.encoding or "identity",
        "Content-Type": stored.kind,
        "Accept-Ranges": "bytes",
    }
    if stored.encoding == "gzip" and "gzip" not in request.headers.get("accept-encoding", ""):
        # Decompressive transcoding, which ignores ranges.
        return Answer(200, gzip.decompress(stored.data), headers)
    if stored.encoding:
        headers["Content-Encoding"] = stored.encoding
    match, size = _RANGE.fullmatch(request.headers.get("range", "")), len(stored.data)
    # As HTTP requires, ignore a range that is not valid.
    if match is None or match[0] == "bytes=-":
        return Answer(200, stored.data, headers)
    first, last = match.groups()
    if first:
        begin, end = int(first), min(int(last or size), size - 1)
    else:
        # The last bytes, by their number.
        begin, end = max(0, size - int(last)), size - 1
    if begin >= size or end < begin:
        raise RejectedError(416, "The requested range cannot be satisfied.")
    headers["Content-Range"] = f"bytes {begin}-{end}/{size}"
    # A view, since parts of shards are large.
    return Answer(206, memoryview(stored.data)[begin : end + 1], headers)


def _delete(store: Objects, request: Request) -> Answer:
    store.delete(request.bucket, request.name, request.query)
    return Answer(204, b"", {})


def _change(store: Objects, request: Request) -> Answer:
    """Change the Content-Encoding and Content-Type of an object."""
    stored = store.get(request.bucket, request.name, request.query)
    metadata = request.json()
    changed = dataclasses.replace(
        stored,
        encoding=metadata.get("contentEncoding", stored.encoding),
        kind=metadata.get("contentType", stored.kind),
    )
    store.buckets[request.bucket][request.name] = changed
    return make_json_answer(changed.make_resource(request.bucket, request.name))


def _list(store: Objects, request: Request) -> Answer:
    """Answer with a page of a listing, of at most `FakeGcs.page` entries, or MAX_LISTED for a store without that attribute."""
    page = store.list_page(request.bucket, request.query, getattr(store, "page", MAX_LISTED))
    answer: dict[str, Any] = {
        "kind": "storage#objects",
        "items": [stored.make_resource(request.bucket, name) for name, stored in page.objects.items()],
        "prefixes": page.prefixes,
    }
    return make_json_answer({**answer, "nextPageToken": page.next_token} if page.next_token else answer)


def _copy(store: Objects, request: Request) -> Answer:
    """Answer rewriteTo and copyTo, which copy an object."""
    query = request.query
    # Preconditions of the source have the names of other preconditions, with Source in them.
    source_query = {key.replace("Source", "", 1): value for key, value in query.items() if key.startswith("ifSource")}
    if "sourceGeneration" in query:
        source_query["generation"] = query["sourceGeneration"]
    with store.lock:
        source = store.get(request.bucket, request.name, source_query)
        bucket, name = query["_to_bucket"], query["_to_name"]
        stored = store.put(bucket, name, source.data, source.encoding, source.kind, query)
    resource = stored.make_resource(bucket, name)
    if query["_verb"] == "copyTo":
        return make_json_answer(resource)
    size = str(len(stored.data))
    answer = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
    return make_json_answer({**answer, "resource": resource})


def _compose(store: Objects, request: Request) -> Answer:
    """Store the joined content of some objects as one object, and answer with its resource."""
    composition = request.json()
    with store.lock:
        parts = [store.get(request.bucket, part["name"], {}) for part in composition["sourceObjects"]]
        kind = composition.get("destination", {}).get("contentType", parts[0].kind)
        data = b"".join(part.data for part in parts)
        stored = store.put(request.bucket, request.name, data, None, kind, request.query)
    return make_json_answer(stored.make_resource(request.bucket, request.name))


def _bucket(store: Objects, request: Request) -> Answer:
    """Answer with the resource of a bucket, or delete it."""
    objects = store.find_bucket(request.bucket)
    if request.method == "DELETE":
        if objects:
            raise RejectedError(409, "The bucket you tried to delete is not empty.")
        del store.buckets[request.bucket]
        return Answer(204, b"", {})
    return make_json_answer(_bucket_resource(request.bucket))


def _bucket_resource(name: str) -> dict[str, str]:
    return {"kind": "storage#bucket", "id": name, "name": name, "location": "US", "locationType": "multi-region"}


def _layout(store: Objects, request: Request) -> Answer:
    """Answer that a bucket has no hierarchical namespace."""
    store.find_bucket(request.bucket)
    layout = {"kind": "storage#storageLayout", "bucket": request.bucket, "location": "US"}
    return make_json_answer({**layout, "locationType": "multi-region", "hierarchicalNamespace": {"enabled": False}})


def _buckets(store: Objects, request: Request) -> Answer:
    """Make a bucket (POST), or answer with the resources of all buckets."""
    if request.method == "POST":
        name = request.json()["name"]
        if name in store.buckets:
            raise RejectedError(409, f"bucket {name} exists already")
        store.bucket(name)
        return make_json_answer(_bucket_resource(name))
    return make_json_answer(
        {"kind": "storage#buckets", "items": [_bucket_resource(name) for name in sorted(store.buckets)]}
    )


def _token(store: Objects, request: Request) -> Answer:
    del request
    return make_json_answer({"access_token": store.issue_token(), "expires_in": 3600, "token_type": "Bearer"})


def _impersonated_token(store: Objects, request: Request) -> Answer:
    del request
    return make_json_answer({"accessToken": store.issue_token(), "expireTime": "2099-01-01T00:00:00Z"})


def _batch(store: Objects, request: Request) -> Answer:
    """Answer the requests in the parts of one body; the answer has a part for each."""
    boundary = f"batch_{uuid.uuid4().hex}"
    answer_parts = []
    for part in request.parse_parts().iter_parts():
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        answer = _answer_part(store, request, payload)
        lines = [f"HTTP/1.1 {answer.code} {HTTPStatus(answer.code).phrase}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines.append(f"Content-Length: {len(answer.body)}")
        content_id = str(part.get("Content-ID", "")).strip("<>")
        part_head = f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: <response-{content_id}>\r\n\r\n"
        answer_parts.append(part_head.encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body + b"\r\n")
    body = b"".join(answer_parts) + f"--{boundary}--\r\n".encode()
    return Answer(200, body, {"Content-Type": f"multipart/mixed; boundary={boundary}"})


def _answer_part(store: Objects, batch: Request, data: bytes) -> Answer:
    """Answer one request of a batch, whose lines may end in LF alone."""
    head, _, body = data.lstrip().partition(b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n")
    request_line, *header_lines = head.decode().splitlines()
    method, target = request_line.split()[:2]
    header_parts = (line.partition(":") for line in header_lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in header_parts}
    url = urlsplit(target)
    request = Request(method, url.path, batch.base, dict(parse_qsl(url.query)), headers, body)
    try:
        return route(request)(store, request)
    except RejectedError as error:
        return make_error_answer(error.code, error.message)


_B, _O = r"(?P<bucket>[^/]+)", r"(?P<name>.+)"
# Groups that are not an object's bucket and name become entries of the query, with a _ before their names.
_TO = r"(?P<verb>rewriteTo|copyTo)/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>.+)"
# Methods, path, operation for faults and counters, and the function that answers.
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
