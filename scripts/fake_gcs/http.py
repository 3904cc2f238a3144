"""Connections: plain, or by CONNECT and TLS as Google's hosts; and their faults."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import struct
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from scripts.fake_gcs.api import Action, route
from scripts.fake_gcs.certificates import HOSTS
from scripts.fake_gcs.faults import Fault
from scripts.fake_gcs.objects import RejectedError
from scripts.fake_gcs.requests import Answer, Request, flip_bit, make_error_answer, make_json_answer
from scripts.fake_gcs.store import Store

# Value of SO_LINGER with which closing a socket resets the connection: on, for 0 seconds.
_RESET = struct.pack("ii", 1, 0)
# Most pieces of a body that is sent slowly, and the least time of a piece.
_MAX_PIECES, _PIECE_SECONDS = 20, 0.01
# Answers in place of the store's, such as a proxy sends, by kind of fault.
_REPLACED_ANSWERS = {
    "empty": Answer(200, b"", {}),
    "html": Answer(200, b"<html><body>Sign in to the network</body></html>", {"Content-Type": "text/html"}),
}
# Kinds of faults that change a bit of a body.
_CORRUPTING = ("corrupt", "unhashed")
# Headers that belong to one connection, and are not forwarded.
_CONNECTION_HEADERS = ("connection", "content-length", "date", "expect", "server", "transfer-encoding")


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
        """Log nothing."""

    def do_CONNECT(self) -> None:
        """Continue the connection by TLS, as the host that the client wants to connect to."""
        host, _, port = self.path.partition(":")
        if host not in HOSTS or port != "443":
            # This proxy connects to no other machine.
            return self._send(make_error_answer(403, f"this store does not stand in for {self.path}"), None)
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
        """Tell the client immediately to send the body: it would wait a second for an answer that stays in the buffer."""
        is_expected = super().handle_expect_100()
        self.wfile.flush()
        return is_expected

    def finish(self) -> None:
        """Close the connection, and the TLS connection that may have replaced it, which the server does not know."""
        # ValueError: the file of the answer is closed already.
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
        """Answer one request, with the fault that it meets: all methods of HTTP."""
        store = self._store
        if self.path == "/counts":
            return self._send(make_json_answer(store.counts()), None)
        with store.count_request() as is_too_many:
            time.sleep(store.latency)
            request = self._read_head()
            fault, fault_kind = None, ""
            try:
                if store.forward and not _is_for_token(request):
                    request.body = self._read_body(request)
                    return self._send(self._forward(request), None)
                action = route(request)
                fault = store.faults.take(request.operation, f"{request.bucket}/{request.name}")
                fault_kind = "" if fault is None else fault.kind
                with store.lock:
                    store.requests[request.operation] += 1
                # Before the body is read, so nothing is executed.
                if fault_kind == "reset":
                    return self._reset()
                request.is_cut = fault_kind == "cut"
                request.body = self._read_body(request)
                if is_too_many:
                    store.requests["rejected"] += 1
                    raise RejectedError(429, "The rate of requests to the bucket is too high.")
                if fault_kind.isdigit():
                    raise RejectedError(int(fault_kind), "a fault of the store")
                if fault_kind == "expired":
                    store.expire_tokens()
                self._check_token(request)
                projects = request.query.get("userProject"), request.headers.get("x-goog-user-project")
                store.seen_projects.add(projects)
                store.check_payer(request.bucket, *projects)
                request.is_corrupt = fault_kind in _CORRUPTING and request.method in ("POST", "PUT")
                if fault_kind in _REPLACED_ANSWERS:
                    return self._send(_REPLACED_ANSWERS[fault_kind], None)
                answer = self._execute(action, request, fault)
                if answer is None:
                    return self._reset()
            except RejectedError as error:
                answer = make_error_answer(error.code, error.message)
                if error.code in (429, 503) and store.retry_after is not None:
                    answer = answer._replace(headers={**answer.headers, "Retry-After": str(store.retry_after)})
            with store.lock:
                store.sent[request.operation] += len(answer.body)
                if request.operation == "read":
                    store.record_read(request.name, answer)
            return self._send(self._transform(answer, request, fault_kind), fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

    @property
    def _store(self) -> Store:
        store: Store = self.server.store
        return store

    def _execute(self, action: Action, request: Request, fault: Fault | None) -> Answer | None:
        """Execute a request, and return its answer; None if its fault is that no answer is sent."""
        store, fault_kind = self._store, "" if fault is None else fault.kind
        # The client gets the answer to the second execution.
        if fault_kind == "duplicate":
            with contextlib.suppress(RejectedError):
                action(store, request)
        answer = action(store, request)
        if fault_kind == "unstored":
            store.buckets[request.bucket].pop(request.name, None)
        if fault is not None and fault_kind == "stall":
            store.ended.wait(fault.seconds)
        if fault_kind in ("cut", "lost", "stall"):
            return None
        return Answer(200, b"", {}) if fault_kind == "unsaid" else answer

    def _read_head(self) -> Request:
        """Return the request without its body, which is not read yet."""
        url = urlsplit(self.path)
        host = self.headers.get("Host", f"127.0.0.1:{self.server.server_port}")
        base = f"https://{self._host}" if self._host else f"http://{host}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, url.path, base, dict(parse_qsl(url.query, True)), headers)

    def _read_body(self, request: Request) -> bytes:
        """Read the body of a request; half of it if it is cut, unless it comes in chunks."""
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            return b"".join(iter(self._read_chunk, b""))
        size = int(request.headers.get("content-length") or 0)
        data = self.rfile.read(size // 2 if request.is_cut else size)
        if self._store.bandwidth:
            time.sleep(len(data) / self._store.bandwidth)
        return data

    def _read_chunk(self) -> bytes:
        """Read a chunk of a chunked body; the last one is empty."""
        size = int(self.rfile.readline().partition(b";")[0], 16)
        data = self.rfile.read(size)
        # The line end after the chunk.
        self.rfile.readline()
        return data

    def _forward(self, request: Request) -> Answer:
        """Send a request to the other store, `Store.forward`, and return its answer."""
        connection = http.client.HTTPConnection(str(self._store.forward), timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _CONNECTION_HEADERS}
        try:
            connection.request(self.command, self.path, request.body or None, headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _CONNECTION_HEADERS}
        if self._host:
            # The other store does not know that the client uses TLS.
            if "Location" in headers:
                headers["Location"] = headers["Location"].replace("http://", "https://", 1)
            data = data.replace(b'"mediaLink":"http://', b'"mediaLink":"https://')
        return Answer(response.status, data, headers)

    def _transform(self, answer: Answer, request: Request, fault_kind: str) -> Answer:
        """Return an answer as the client gets it: JSON compressed if the client requests that, and with the effect of a fault."""
        headers, body = answer.headers, answer.body
        if self._store.hides_hashes or fault_kind == "unhashed":
            headers = {name: value for name, value in headers.items() if name != "X-Goog-Hash"}
        # Google's store requires the word gzip in both headers.
        requests_gzip = all("gzip" in request.headers.get(name, "") for name in ("accept-encoding", "user-agent"))
        is_json = headers.get("Content-Type", "").startswith("application/json")
        if self._store.packs and is_json and requests_gzip:
            headers, body = {**headers, "Content-Encoding": "gzip"}, gzip.compress(body)
        # If the request uploads bytes, the fault has changed the uploaded bytes instead.
        if fault_kind in _CORRUPTING and not request.is_corrupt:
            body = flip_bit(bytes(body))
        if fault_kind == "short":
            body = body[: len(body) // 2]
        return Answer(answer.code, body, headers)

    def _check_token(self, request: Request) -> None:
        """Reject a request whose token the store does not accept; requests for tokens need none."""
        if request.operation == "token":
            return
        header = request.headers.get("authorization")
        self._store.seen_authorization.add(header or "")
        self._store.check_token(header)

    def _reset(self) -> None:
        """Reset the connection: the client gets an error instead of the end of the data."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        for file in (self.rfile, self.wfile):
            with contextlib.suppress(OSError):
                file.close()
        self.connection.close()

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        """Send an answer, truncated or slowly if the fault says so."""
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
        """Send a body evenly over some seconds."""
        if not seconds:
            self.wfile.write(body)
            self.wfile.flush()
            return
        view, begin = memoryview(body), time.monotonic()
        piece_count = max(1, min(_MAX_PIECES, len(body), round(seconds / _PIECE_SECONDS)))
        for number in range(piece_count):
            self.wfile.write(view[len(body) * number // piece_count : len(body) * (number + 1) // piece_count])
            self.wfile.flush()
            time.sleep(max(0.0, begin + seconds * (number + 1) / piece_count - time.monotonic()))
