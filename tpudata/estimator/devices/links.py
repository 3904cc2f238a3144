"""Connections between the processes of a run: messages of bytes, and the end of the process at the other side.

`multiprocessing.connection` frames the messages, which are bytes and never pickles: what a stranger sends is a message of an
unknown kind, or the end of the connection. A thread for each connection reads them as they come, so nobody waits to send, and the
end of a process is noticed while this one is busy. A process that ends says so in its last message; one that is killed closes the
connection without it, and a machine that is switched off no longer acknowledges (25 s).
"""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

_LEFT, _NOTICE = b"l", b"x"
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3


class LinkEndedError(Exception):
    """The process at the other side has ended, or cannot be reached."""


class Link:
    """A connection with another process.

    Args:
        connection: connected socket, which this object takes over.
        most_bytes: size of the largest message that the other process sends.
        on_notice: gets the bytes of each notice, in the thread that reads.
        on_end: is called once the other process has ended, in the thread that reads, with whether it said so.
    """

    def __init__(
        self,
        connection: socket.socket,
        most_bytes: int,
        on_notice: Callable[[bytes], None],
        on_end: Callable[[bool], None],
    ) -> None:
        _watch_connection(connection)
        self._connection = Connection(connection.detach())
        self._most_bytes = most_bytes
        self._on_notice = on_notice
        self._on_end = on_end
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        # A forked child would keep the connection open after the end of this process.
        os.register_at_fork(after_in_child=self._connection.close)

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="tpudata-peer", daemon=True).start()

    def send(self, kind: bytes, data: bytes) -> None:
        """Send a message.

        Raises:
            LinkEndedError: the other process has ended.
        """
        try:
            with self._sending:
                # Apart, as the data may be large and `kind + data` copies them.
                self._connection.send_bytes(kind)
                self._connection.send_bytes(data)
        except OSError as error:
            raise LinkEndedError from error

    def notify(self, data: bytes) -> None:
        """Send a notice, which does not wait for its turn, if the other process still runs."""
        with contextlib.suppress(LinkEndedError):
            self.send(_NOTICE, data)

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for the next message, and return its kind and its bytes; signals interrupt the wait.

        Raises:
            LinkEndedError: the other process has ended.
        """
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)
            raise LinkEndedError
        return message

    def close(self) -> None:
        """Say that this process ends."""
        with contextlib.suppress(LinkEndedError):
            self.send(_LEFT, b"")

    def _read(self) -> None:
        has_left = False
        with contextlib.suppress(OSError, EOFError):
            while not has_left:
                kind, data = (self._connection.recv_bytes(self._most_bytes) for _ in range(2))
                if kind == _LEFT:
                    has_left = True
                elif kind == _NOTICE:
                    self._on_notice(data)
                else:
                    self._inbox.put((kind, data))
        self._on_end(has_left)
        self._inbox.put(None)


def _watch_connection(connection: socket.socket) -> None:
    """Let the connection end if the other machine no longer acknowledges."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
    options = {
        "TCP_KEEPIDLE": _IDLE_SECONDS,
        "TCP_KEEPINTVL": _PROBE_SECONDS,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": seconds * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Not all systems have all of them.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
