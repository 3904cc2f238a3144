"""A small Google Cloud Storage on loopback: the JSON API as google-cloud-storage speaks it, with objects in memory.

Generations and their preconditions, paging, ranges (with 416), resumable uploads and their recovery are as in the documentation;
buckets are those that are made by `GcsServer.bucket`. Requests can be delayed, and every one is counted.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
PAGE = 5


@dataclasses.dataclass(frozen=True)
class Object:
    """One generation of an object."""

    data: bytes
    generation: int
    encoding: str | None = None

    @property
    def crc32c(self) -> str:
        """As the API writes it: base64 of the big-endian bytes."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()


@dataclasses.dataclass
class Upload:
    """A resumable upload that is under way."""

    bucket: str
    name: str
    match: int | None
    data: bytearray = dataclasses.field(default_factory=bytearray)


class GcsServer:
    """The store; `with GcsServer() as store` serves it at `store.url`.

    Attributes:
        buckets: objects by bucket and name.
        requests: how many there were, by kind: list, stat, read, upload, delete.
        latency: seconds that every request waits.
        page: most objects in an answer to a listing.
    """

    def __init__(self, page: int = PAGE) -> None:
        self.buckets: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: Counter[str] = Counter()
        self.latency = 0.0
        self.page = page
        self.denied: set[str] = set()
        self.lock = threading.Lock()
        self._generation = 1000
        store = self

        class Handler(_Handler):
            server_store = store

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> GcsServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def bucket(self, name: str) -> dict[str, Object]:
        """Makes a bucket."""
        return self.buckets.setdefault(name, {})

    def put(self, bucket: str, name: str, data: bytes, encoding: str | None = None) -> Object:
        """Stores an object, as a new generation; `encoding` is its Content-Encoding."""
        with self.lock:
            self._generation += 1
            self.buckets[bucket][name] = Object(data, self._generation, encoding)
            return self.buckets[bucket][name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_store: GcsServer

    def log_message(self, *_: Any) -> None:
        """Nothing: tests have their own output."""

    def do_GET(self) -> None:
        path, query = self._begin()
        if found := _OBJECT.fullmatch(path):
            self._get_object(found[1], unquote(found[2]), query)
        elif found := _LIST.fullmatch(path):
            self._list(found[1], query)
        else:
            self._error(404, f"no such path {path}")

    def do_POST(self) -> None:
        path, query = self._begin()
        body = self._body()
        found = _UPLOAD.fullmatch(path)
        if found is None or query.get("uploadType") != "resumable":
            return self._error(400, "only resumable uploads are served here")
        if not self._allowed(found[1]):
            return None
        name = query.get("name") or json.loads(body)["name"]
        match = query.get("ifGenerationMatch")
        with self.server_store.lock:
            number = f"upload-{len(self.server_store.uploads)}"
            self.server_store.uploads[number] = Upload(found[1], name, None if match is None else int(match))
        return self._answer(200, b"", {"Location": f"{self.server_store.url}/resume/{number}"})

    def do_PUT(self) -> None:
        path, _ = self._begin()
        body = self._body()
        self.server_store.requests["upload"] += 1
        upload = self.server_store.uploads.get(path.removeprefix("/resume/"))
        said = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        if upload is None or said is None:
            return self._error(404, "no such upload")
        if said[1] is not None:
            if int(said[1]) > len(upload.data):
                return self._error(503, "a part before this one is missing")
            upload.data[int(said[1]) :] = body
        if said[3] == "*" or len(upload.data) < int(said[3]):
            headers = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return self._answer(308, b"", headers)
        current = self.server_store.buckets[upload.bucket].get(upload.name)
        if upload.match is not None and upload.match != (current.generation if current else 0):
            return self._error(412, "the generation is another")
        stored = self.server_store.put(upload.bucket, upload.name, bytes(upload.data))
        return self._json(_resource(upload.bucket, upload.name, stored))

    def do_DELETE(self) -> None:
        path, _ = self._begin()
        self.server_store.requests["delete"] += 1
        if path.startswith("/resume/"):
            self.server_store.uploads.pop(path.removeprefix("/resume/"), None)
            return self._answer(499, b"", {})
        found = _OBJECT.fullmatch(path)
        if found is None or self.server_store.buckets.get(found[1], {}).pop(unquote(found[2]), None) is None:
            return self._error(404, "no such object")
        return self._answer(204, b"", {})

    def _get_object(self, bucket: str, name: str, query: dict[str, str]) -> None:
        if not self._allowed(bucket):
            return None
        found = self.server_store.buckets[bucket].get(name)
        if found is None or int(query.get("generation", found.generation)) != found.generation:
            return self._error(404, f"No such object: {bucket}/{name}")
        if query.get("alt") != "media":
            self.server_store.requests["stat"] += 1
            return self._json(_resource(bucket, name, found))
        self.server_store.requests["read"] += 1
        md5 = base64.b64encode(hashlib.md5(found.data).digest()).decode()
        headers = {"X-Goog-Hash": f"crc32c={found.crc32c},md5={md5}", "X-Goog-Generation": str(found.generation)}
        said = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found.encoding == "gzip" and "gzip" not in self.headers.get("Accept-Encoding", ""):
            # Decompressive transcoding, which leaves ranges aside.
            return self._answer(200, gzip.decompress(found.data), headers)
        if found.encoding:
            headers["Content-Encoding"] = found.encoding
        if said is None:
            return self._answer(200, found.data, headers)
        start, end = int(said[1]), min(int(said[2] or len(found.data)), len(found.data) - 1)
        if start >= len(found.data):
            return self._error(416, "the range is not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(found.data)}"
        return self._answer(206, found.data[start : end + 1], headers)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        self.server_store.requests["list"] += 1
        if not self._allowed(bucket):
            return None
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        found: dict[str, Object | None] = {}
        with self.server_store.lock:
            for name, stored in self.server_store.buckets[bucket].items():
                if name.startswith(prefix):
                    inside, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                    found[prefix + inside + cut if cut else name] = None if cut else stored
        # A page holds objects and prefixes together, in the order of their names.
        names = [name for name in sorted(found) if name > query.get("pageToken", "")]
        page = names[: min(self.server_store.page, int(query.get("maxResults", self.server_store.page)))]
        answer: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [_resource(bucket, name, item) for name in page if (item := found[name]) is not None],
            "prefixes": [name for name in page if found[name] is None],
        }
        if len(page) < len(names):
            answer["nextPageToken"] = page[-1]
        return self._json(answer)

    def _begin(self) -> tuple[str, dict[str, str]]:
        time.sleep(self.server_store.latency)
        parts = urlsplit(self.path)
        return parts.path, {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _allowed(self, bucket: str) -> bool:
        if bucket in self.server_store.denied:
            self._error(403, "the account has no permission")
        elif bucket not in self.server_store.buckets:
            self._error(404, f"The specified bucket does not exist: {bucket}")
        else:
            return True
        return False

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, code: int, message: str) -> None:
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        self._answer(code, body, {"Content-Type": "application/json"})

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _resource(bucket: str, name: str, stored: Object) -> dict[str, Any]:
    return {
        **({"contentEncoding": stored.encoding} if stored.encoding else {}),
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "crc32c": stored.crc32c,
        "md5Hash": base64.b64encode(hashlib.md5(stored.data).digest()).decode(),
    }
