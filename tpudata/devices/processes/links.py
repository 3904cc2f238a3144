"""Connections between the processes of a run: messages of bytes, and the end of the process at the other side.

A message is a kind of one byte, its length in eight bytes (big-endian), and its bytes. A thread for each connection reads them as
they come, so nobody waits to send, and the end of a process is noticed while this one is busy. A process that ends says so in its
last message; one that is killed closes the connection without it, and a machine that is switched off no longer acknowledges (25 s).
"""

import contextlib
import os
import queue
import socket
import struct
import threading
import weakref
from collections.abc import Callable

_HEADER = struct.Struct(">cQ")
_LEFT = b"l"
# Messages from this size on are sent after their header, not copied into one buffer with it.
_LARGE = 1 << 16
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3


class LinkEndedError(Exception):
    """The process at the other side has ended, or cannot be reached."""


class Link:
    """A connection with another process.

    Args:
        connection: connected socket, which this object closes.
        on_message: gets the kind and the bytes of each message that is not for `receive`, in the thread that reads.
        kinds: kinds of the messages that `on_message` gets.
        on_end: is called once the other process has ended, in the thread that reads, with whether it said so.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[[bytes, bytes], None],
        kinds: bytes,
        on_end: Callable[[bool], None],
    ) -> None:
        self._connection = connection
        self._on_message = on_message
        self._kinds = kinds
        self._on_end = on_end
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        _watch_connection(connection)
        # A forked child would keep the connection open after the end of this process.
        ref = weakref.ref(connection)
        os.register_at_fork(after_in_child=lambda: _close(ref()))

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
                header = _HEADER.pack(kind, len(data))
                for part in (header, data) if len(data) > _LARGE else (header + data,):
                    self._connection.sendall(part)
        except OSError as error:
            raise LinkEndedError from error

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
        try:
            while not has_left:
                kind, size = _HEADER.unpack(self._read_bytes(_HEADER.size))
                data = bytes(self._read_bytes(size))
                if kind == _LEFT:
                    has_left = True
                elif kind in self._kinds:
                    self._on_message(kind, data)
                else:
                    self._inbox.put((kind, data))
        except OSError:
            pass
        self._on_end(has_left)
        self._inbox.put(None)

    def _read_bytes(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        read = 0
        while read < size:
            count = self._connection.recv_into(data[read:])
            if not count:
                raise ConnectionResetError
            read += count
        return data


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


def _close(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()
