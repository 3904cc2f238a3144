"""The server: a port, its threads, its settings and its counters."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple

from scripts.fake_gcs.certificates import server_context
from scripts.fake_gcs.faults import Faults
from scripts.fake_gcs.http import Handler
from scripts.fake_gcs.objects import Objects
from scripts.fake_gcs.requests import Answer

PAGE = 5
# Requests that are remembered.
_READS = 100_000


class Read(NamedTuple):
    """A request for bytes of an object: its answer, and when that was sent, by the monotonic clock."""

    name: str
    code: int
    size: int
    seconds: float


class FakeGcs(Objects):
    """The store; `with FakeGcs() as store` serves it at `store.url`.

    Args:
        page: most objects in an answer to a listing.
        port: of loopback; any that is free by default.

    Attributes:
        buckets, uploads, denied, retained, requester_pays, uploads_at, needs_token: see `Objects`.
        faults: faults that requests meet.
        requests: number of requests by operation.
        sent: bytes of the bodies of answers, by operation.
        connections: number of connections.
        reads: the last requests for bytes of objects.
        seen_authorization: the headers of this name, of every kind that came.
        seen_projects: the projects that requests named in their URL and in the header of Google's library.
        latency: seconds that every request waits before anything is done.
        forward: HOST:PORT of another store, which answers in place of this one all but questions for tokens.
        bandwidth: bytes per second of each answer's body, None for as many as there can be.
        packs: whether JSON is packed for clients that ask for it as Google wants, by two headers.
        hides_hashes: whether answers lack X-Goog-Hash, as some proxies leave them.
        capacity: requests at the same time that are answered, None for any number; more get 429.
        retry_after: seconds of the header Retry-After of answers 429 and 503, None for none.
        ended: set when the store ends.
        in_flight, most_in_flight: requests at the same time, now and at most.
    """

    def __init__(self, page: int = PAGE, port: int = 0) -> None:
        super().__init__()
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.connections = 0
        self.reads: deque[Read] = deque(maxlen=_READS)
        self.seen_authorization: set[str] = set()
        self.seen_projects: set[tuple[str | None, str | None]] = set()
        self.latency = 0.0
        self.bandwidth: float | None = None
        self.forward: str | None = None
        self.capacity: int | None = None
        self.retry_after: float | None = None
        self.packs, self.hides_hashes = True, False
        self.ended = threading.Event()
        self.page = page
        self.in_flight = self.most_in_flight = 0
        self._tls: tuple[ssl.SSLContext, bytes] | None = None
        self._server = _Server(("127.0.0.1", port), self)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeGcs:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        ends = threading.Thread(target=self._server.shutdown)
        ends.start()
        # It looks whether to end every 20 ms, and at a connection.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        ends.join()
        self._server.server_close()
        self._server.close_connections()

    def read(self, name: str, answer: Answer) -> None:
        """Remember a request for bytes of an object."""
        self.reads.append(Read(name, answer.code, len(answer.body), time.monotonic()))

    def counts(self) -> dict[str, Any]:
        """Return the counters, and the CPU seconds of the process: the answer to GET /counts.

        `most_in_flight` counts from the call before.
        """
        with self.lock:
            found = {"requests": dict(self.requests), "sent": dict(self.sent), "connections": self.connections}
            most, self.most_in_flight = self.most_in_flight, self.in_flight
            return {**found, "most_in_flight": most, "cpu_seconds": time.process_time()}

    @property
    def tls(self) -> ssl.SSLContext:
        """For connections to the hosts that it stands in for."""
        return self._made_tls()[0]

    @property
    def authority(self) -> bytes:
        """The certificate that whoever takes this for his proxy must trust, in PEM."""
        return self._made_tls()[1]

    def _made_tls(self) -> tuple[ssl.SSLContext, bytes]:
        with self.lock:
            if self._tls is None:
                self._tls = server_context()
            return self._tls

    @contextlib.contextmanager
    def counted(self) -> Iterator[bool]:
        """Count a request; yield whether it is one too many."""
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            is_too_many = self.capacity is not None and self.in_flight > self.capacity
        try:
            yield is_too_many
        finally:
            with self.lock:
                self.in_flight -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client opens all its connections at once.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], store: FakeGcs) -> None:
        self.store = store
        self._connections: set[socket.socket] = set()
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # Python's own asks for the name of the address, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections = {known for known in self._connections if known.fileno() >= 0} | {request}
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        """End those that clients keep for later."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients go away when they like; an answer of 500 tells them of mistakes here."""
