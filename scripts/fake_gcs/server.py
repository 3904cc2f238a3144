"""The server: a port, and its threads."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from scripts.fake_gcs.http import Handler
from scripts.fake_gcs.store import PAGE, Store


class FakeGcs(Store):
    """A store that is served; `with FakeGcs() as store` serves it at `store.url`.

    Args:
        page: most entries in a page of a listing.
        port: port of loopback; 0 for any that is free.

    Attributes:
        port: port of loopback.
        url: address of the store, by HTTP.
    """

    def __init__(self, page: int = PAGE, port: int = 0) -> None:
        super().__init__(page)
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


class _Server(ThreadingHTTPServer):
    """The server of a store, with a thread for each connection."""

    daemon_threads = True
    # A client opens all its connections at the same time.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], store: Store) -> None:
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
