"""Connections between the processes of a run: messages of bytes, and the detection of the other process's end.

`multiprocessing.connection` frames the messages, which are bytes and never pickles: at worst, bytes of a stranger are a message of
an unknown kind, or end the connection. A thread for each connection reads messages as they arrive, so the sender never waits, and
the end of a process is noticed while this one is busy. A process announces its end in its last message. The connection of a killed
process ends without that message, and the connection of a machine that is switched off times out after 25 s.
"""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

# Kinds of messages that `receive` does not return.
_END, _NOTICE = b"l", b"x"
# A silent connection is probed after 10 s. It times out if 3 probes, 5 s apart, get no answer: 25 s in all.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3


class LinkEndedError(Exception):
    """The process at the other side has ended, or cannot be reached."""


class Link:
    """A connection with another process.

    Args:
        connection: connected socket, which this object takes over.
        max_bytes: size of the largest message that the other process sends.
        on_notice: called with the bytes of each notice, in the thread that reads.
        on_end: called once the other process has ended, in the thread that reads, with whether it announced its end.
    """

    def __init__(
        self,
        connection: socket.socket,
        max_bytes: int,
        on_notice: Callable[[bytes], None],
        on_end: Callable[[bool], None],
    ) -> None:
        _configure_connection(connection)
        self._connection = Connection(connection.detach())
        self._max_bytes = max_bytes
        self._on_notice = on_notice
        self._on_end = on_end
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        # A forked child would keep the connection open after the end of this process.
        os.register_at_fork(after_in_child=self._connection.close)

    def start(self) -> None:
        """Start the thread that reads messages."""
        threading.Thread(target=self._read, name="tpudata-peer", daemon=True).start()

    def send(self, kind: bytes, data: bytes) -> None:
        """Send a message.

        Raises:
            LinkEndedError: the other process has ended.
        """
        try:
            with self._sending:
                # In two messages: `kind + data` would copy the data, which may be large.
                self._connection.send_bytes(kind)
                self._connection.send_bytes(data)
        except OSError as error:
            raise LinkEndedError from error

    def notify(self, data: bytes) -> None:
        """Send bytes to the other side's `on_notice` instead of its `receive`; do nothing if the other process has ended."""
        with contextlib.suppress(LinkEndedError):
            self.send(_NOTICE, data)

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for the next message, and return its kind and its bytes; signals interrupt the wait.

        Raises:
            LinkEndedError: the other process has ended.
        """
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # For further calls.
            raise LinkEndedError
        return message

    def announce_end(self) -> None:
        """Tell the other process that this one is ending; the connection stays open."""
        with contextlib.suppress(LinkEndedError):
            self.send(_END, b"")

    def _read(self) -> None:
        """Read messages until the other process ends, and report its end."""
        is_announced = False
        with contextlib.suppress(OSError, EOFError):
            while not is_announced:
                kind = self._connection.recv_bytes(self._max_bytes)
                data = self._connection.recv_bytes(self._max_bytes)
                if kind == _END:
                    is_announced = True
                elif kind == _NOTICE:
                    self._on_notice(data)
                else:
                    self._inbox.put((kind, data))
        # `_on_end` comes first: it records the end that callers describe once `receive` wakes them.
        self._on_end(is_announced)
        self._inbox.put(None)


def _configure_connection(connection: socket.socket) -> None:
    """Make the connection send small messages at once, and time out if the other machine acknowledges nothing for 25 s."""
    connection.settimeout(None)
    # Most messages are small, and the other process waits for them.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
    options = {
        "TCP_KEEPIDLE": _IDLE_SECONDS,
        "TCP_KEEPINTVL": _PROBE_SECONDS,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": seconds * 1000,
    }
    for name, setting in options.items():
        if hasattr(socket, name):  # Some systems lack some of these options.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), setting)
