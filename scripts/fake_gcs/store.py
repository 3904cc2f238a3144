"""The store that a server serves: its objects, its settings and its counters."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from scripts.fake_gcs.certificates import make_server_context
from scripts.fake_gcs.faults import Faults
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


class Store(Objects):
    """Objects in memory, with the faults that requests meet and counters of requests.

    Args:
        page: most entries in a page of a listing.

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

    def __init__(self, page: int = PAGE) -> None:
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
