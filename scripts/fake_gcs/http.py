"""Connections: plain, or by CONNECT and TLS as Google's hosts; and their faults."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import struct
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from scripts.fake_gcs.api import route
from scripts.fake_gcs.certificates import HOSTS
from scripts.fake_gcs.faults import Fault
from scripts.fake_gcs.objects import RejectedError
from scripts.fake_gcs.requests import Answer, Request, error_answer, json_answer, spoiled

if TYPE_CHECKING:
    from scripts.fake_gcs.server import FakeGcs

_RESET = struct.pack("ii", 1, 0)
_PIECES, _PIECE_SECONDS = 20, 0.01
_OF_A_PROXY = {
    "empty": Answer(200, b"", {}),
    "html": Answer(200, b"<html><body>Sign in to the network</body></html>", {"Content-Type": "text/html"}),
}
_SPOILING = ("corrupt", "unhashed")
_OF_ONE_CONNECTION = ("connection", "content-length", "date", "expect", "server", "transfer-encoding")


def _is_for_token(request: Request) -> bool:
    return request.path.endswith(("/token", ":generateAccessToken"))


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    # Otherwise small answers wait until the client acknowledges their heads.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Any
    _host = ""

    def log_message(self, *_: Any) -> None:
        """Nothing: tests have their own output."""

    def do_CONNECT(self) -> None:
        """Goes on with the client by TLS, as the host that it wants to speak with."""
        host, _, port = self.path.partition(":")
        if host not in HOSTS or port != "443":
            # Nothing leads out of here.
            return self._send(error_answer(403, f"this store does not stand in for {self.path}"), None)
        self.send_response(200, "Connection Established")
        self.end_headers()
        self.wfile.flush()
        self.connection = self._store.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", self.wbufsize)
        self._host = host
        self.close_connection = False
        return None

    def handle_expect_100(self) -> bool:
        """Lets the body come; a client waits for a second before it sends it unasked."""
        answered = super().handle_expect_100()
        self.wfile.flush()
        return answered

    def finish(self) -> None:
        """Close the connection; that of TLS is one that the server does not know."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        with contextlib.suppress(OSError):
            self.connection.close()

    def setup(self) -> None:
        """Count the connection."""
        with self._store.lock:
            self._store.connections += 1
        super().setup()

    def _serve(self) -> None:
        store = self._store
        if self.path == "/counts":
            return self._send(json_answer(store.counts()), None)
        with store.counted() as is_too_many:
            time.sleep(store.latency)
            request = self._request()
            fault = None
            try:
                if store.forward and not _is_for_token(request):
                    request.body = self._body(request)
                    return self._send(self._forward(request), None)
                action = route(request)
                fault = store.faults.take(request.operation, f"{request.bucket}/{request.name}")
                with store.lock:
                    store.requests[request.operation] += 1
                if fault is not None and fault.kind == "reset":
                    return self._reset()
                request.is_cut = fault is not None and fault.kind == "cut"
                request.body = self._body(request)
                if is_too_many:
                    store.requests["rejected"] += 1
                    raise RejectedError(429, "The rate of requests to the bucket is too high.")
                self._reject_by(fault)
                self._check_token(request)
                billed = request.said.get("userProject"), request.headers.get("x-goog-user-project")
                store.seen_projects.add(billed)
                store.check_payer(request.bucket, *billed)
                request.spoils = fault is not None and fault.kind in _SPOILING and request.method in ("POST", "PUT")
                if fault is not None and fault.kind in _OF_A_PROXY:
                    return self._send(_OF_A_PROXY[fault.kind], None)
                if fault is not None and fault.kind == "duplicate":
                    with contextlib.suppress(RejectedError):
                        action(store, request)
                answer = action(store, request)
                if fault is not None and fault.kind == "unstored":
                    store.buckets[request.bucket].pop(request.name, None)
                if fault is not None and fault.kind == "stall":
                    store.ended.wait(fault.seconds)
                if fault is not None and fault.kind in ("cut", "lost", "stall"):
                    return self._reset()
                if fault is not None and fault.kind == "unsaid":
                    answer = Answer(200, b"", {})
            except RejectedError as error:
                answer = error_answer(error.code, error.message)
                if error.code in (429, 503) and store.retry_after is not None:
                    answer = answer._replace(headers={**answer.headers, "Retry-After": str(store.retry_after)})
            with store.lock:
                store.sent[request.operation] += len(answer.body)
                if request.operation == "read":
                    store.read(request.name, answer)
            return self._send(self._as_it_comes(answer, request, fault), fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

    @property
    def _store(self) -> FakeGcs:
        store: FakeGcs = self.server.store
        return store

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        base = f"https://{self._host}" if self._host else f"http://{self.headers.get('Host', self._store.url[7:])}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, parts.path, base, dict(parse_qsl(parts.query, True)), headers)

    def _body(self, request: Request) -> bytes:
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            return b"".join(iter(self._chunk, b""))
        size = int(request.headers.get("content-length") or 0)
        data = self.rfile.read(size // 2 if request.is_cut else size)
        if self._store.bandwidth:
            time.sleep(len(data) / self._store.bandwidth)
        return data

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().partition(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _forward(self, request: Request) -> Answer:
        """Return the answer of another store."""
        connection = http.client.HTTPConnection(str(self._store.forward), timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        try:
            connection.request(self.command, self.path, request.body or None, headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        kept = {name: value for name, value in response.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        if self._host and "Location" in kept:
            # It does not know that it was asked by TLS.
            kept["Location"] = kept["Location"].replace("http://", "https://", 1)
        if self._host:
            data = data.replace(b'"mediaLink":"http://', b'"mediaLink":"https://')
        return Answer(response.status, data, kept)

    def _as_it_comes(self, answer: Answer, request: Request, fault: Fault | None) -> Answer:
        """Return an answer as it leaves: packed for who asks for it so, and with what goes wrong on the way."""
        headers, body = answer.headers, answer.body
        if self._store.hides_hashes or (fault is not None and fault.kind == "unhashed"):
            headers = {name: value for name, value in headers.items() if name != "X-Goog-Hash"}
        asks = [request.headers.get(name, "") for name in ("accept-encoding", "user-agent")]
        is_json = headers.get("Content-Type", "").startswith("application/json")
        if self._store.packs and is_json and all("gzip" in words for words in asks):
            headers, body = {**headers, "Content-Encoding": "gzip"}, gzip.compress(body)
        if fault is not None and fault.kind in _SPOILING and not request.spoils:
            body = spoiled(bytes(body))
        if fault is not None and fault.kind == "short":
            body = body[: len(body) // 2]
        return Answer(answer.code, body, headers)

    def _reject_by(self, fault: Fault | None) -> None:
        if fault is not None and fault.kind.isdigit():
            raise RejectedError(int(fault.kind), "this is what was asked for")
        if fault is not None and fault.kind == "expired":
            self._store.expire_tokens()

    def _check_token(self, request: Request) -> None:
        if request.operation == "token":
            return
        header = request.headers.get("authorization")
        self._store.seen_authorization.add(header or "")
        self._store.check_token(header)

    def _reset(self) -> None:
        """End the connection as a machine does that knows nothing of it."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        for file in (self.rfile, self.wfile):
            with contextlib.suppress(OSError):
                file.close()
        self.connection.close()

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        self.send_response(answer.code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        body = b"" if self.command == "HEAD" else answer.body
        kind = fault.kind if fault is not None else ""
        if kind == "truncated":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        seconds = 0.0 if not self._store.bandwidth else len(body) / self._store.bandwidth
        if fault is not None and kind == "slow":
            seconds = max(seconds, fault.seconds)
        self._send_over(body, seconds)

    def _send_over(self, body: bytes | memoryview, seconds: float) -> None:
        """Send a body so that it takes this long."""
        if not seconds:
            self.wfile.write(body)
            self.wfile.flush()
            return
        view, begin = memoryview(body), time.monotonic()
        pieces = max(1, min(_PIECES, len(body), round(seconds / _PIECE_SECONDS)))
        for number in range(pieces):
            self.wfile.write(view[len(body) * number // pieces : len(body) * (number + 1) // pieces])
            self.wfile.flush()
            time.sleep(max(0.0, begin + seconds * (number + 1) / pieces - time.monotonic()))
