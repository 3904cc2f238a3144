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

from scripts.fake_gcs.certificates import make_server_context
from scripts.fake_gcs.faults import Faults
from scripts.fake_gcs.http import Handler
from scripts.fake_gcs.objects import Objects
from scripts.fake_gcs.requests import Answer

# Default number of entries in a page of a listing, few so that tests have several pages.
PAGE = 5
# Number of requests for bytes that `reads` keeps.
_MAX_READS = 100_000


class Read(NamedTuple):
    """A request for bytes of an object.

    Attributes:
        name: name of the object.
        code: status code of the answer.
        size: bytes of its body.
        seconds: time of the answer, by the monotonic clock.
    """

    name: str
    code: int
    size: int
    seconds: float


class FakeGcs(Objects):
    """The store; `with FakeGcs() as store` serves it at `store.url`.

    Args:
        page: most entries in a page of a listing.
        port: port of loopback; 0 for any that is free.

    Attributes:
        buckets, uploads, denied, retained, requester_pays, uploads_at, needs_token: see `Objects`.
        faults: faults that requests meet.
        requests: number of requests by operation.
        sent: bytes of the bodies of answers, by operation.
        connections: number of connections.
        reads: the last requests for bytes of objects.
        seen_authorization: all values of the header Authorization in requests; empty for a request without it.
        seen_projects: pairs of the projects that requests named in their URL and in a header; None for none.
        latency: seconds that every request waits before it is executed.
        forward: HOST:PORT of another store that answers all requests except requests for tokens; None for this store.
        bandwidth: bytes per second of each request's and answer's body, None for no limit.
        packs: whether JSON is compressed for clients that request it by the two headers that Google requires.
        hides_hashes: whether answers lack X-Goog-Hash, which some proxies remove.
        capacity: number of requests that are answered at the same time, None for no limit; others get 429.
        retry_after: seconds in the header Retry-After of answers 429 and 503, None for no header.
        page: most entries in a page of a listing.
        ended: set when the store ends.
        in_flight, most_in_flight: number of requests at the same time, now and at most.
    """

    def __init__(self, page: int = PAGE, port: int = 0) -> None:
        super().__init__()
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.connections = 0
        self.reads: deque[Read] = deque(maxlen=_MAX_READS)
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
        shutdown = threading.Thread(target=self._server.shutdown)
        shutdown.start()
        # The server notices a shutdown every 20 ms, or immediately after a connection.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        shutdown.join()
        self._server.server_close()
        self._server.close_connections()

    def record_read(self, name: str, answer: Answer) -> None:
        """Add a request for bytes of an object to `reads`."""
        self.reads.append(Read(name, answer.code, len(answer.body), time.monotonic()))

    def counts(self) -> dict[str, Any]:
        """Return the counters, and the CPU seconds of the process: the answer to GET /counts.

        `most_in_flight` is the maximum since the last call.
        """
        with self.lock:
            counters = {"requests": dict(self.requests), "sent": dict(self.sent), "connections": self.connections}
            most, self.most_in_flight = self.most_in_flight, self.in_flight
            return {**counters, "most_in_flight": most, "cpu_seconds": time.process_time()}

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS context for connections to Google's hosts."""
        return self._get_tls()[0]

    @property
    def authority(self) -> bytes:
        """The certificate in PEM that clients must trust if the store is their proxy."""
        return self._get_tls()[1]

    def _get_tls(self) -> tuple[ssl.SSLContext, bytes]:
        """Return the TLS context and the authority's certificate, which are made at the first call."""
        with self.lock:
            if self._tls is None:
                self._tls = make_server_context()
            return self._tls

    @contextlib.contextmanager
    def count_request(self) -> Iterator[bool]:
        """Count a request in flight while the context lasts; yield whether more are in flight than the store's capacity."""
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
    """The server of a store, with a thread for each connection."""

    daemon_threads = True
    # A client opens all its connections at the same time.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], store: FakeGcs) -> None:
        self.store = store
        self._connections: set[socket.socket] = set()
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Bind the socket to the address, and set the attributes that Python's method sets."""
        # Python's method looks up the name of the address, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection, and remember the connection for `close_connections`."""
        # A closed socket has the descriptor -1.
        open_connections = {connection for connection in self._connections if connection.fileno() >= 0}
        self._connections = open_connections | {request}
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        """End the connections that clients keep open."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections: clients may end them at any time."""
