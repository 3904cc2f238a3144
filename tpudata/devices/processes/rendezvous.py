"""Meeting of the processes of a run, before jax joins them.

jax (0.10.2, 0.12.0) waits for other processes inside its runtime, where neither SIGTERM nor Ctrl-C reaches Python, prints nothing,
and aborts at its limit or if two processes have the same number; two runs with the same address would share a port. So the first
process listens at the coordinator's address, which jax's own service takes afterwards, and the other processes connect to it.
Each process then knows who is missing. The connections remain: the processes use them to agree (cluster_peers.py) and to notice
the end of a process.

The protocol is lines of text: an arriving process sends `tpudata INDEX COUNT`, its index and the number of processes;
the first process answers with `missing NAMES`, again whenever that changes, `no REASON`, or `go` to all processes together. Any
other connection is a stranger: it is closed without delaying the meeting.
"""

import contextlib
import errno
import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

from tpudata.console.tables import count_text
from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.errors import UsageError

_log = logging.getLogger("tpudata")
# Longest wait in the operating system: Python handles signals after each.
_TRY_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
# Processes that are started together meet without a message.
_QUIET_SECONDS = 2.0
_LINE_BYTES = 4096


def meet(group: ProcessGroup, timeout_seconds: float) -> dict[int, socket.socket]:
    """Wait until all processes of a group run.

    Args:
        group: the processes, and which of them this one is.
        timeout_seconds: maximum number of seconds to wait.

    Returns:
        In the first process, the connections to all other processes by their index; in any other process, its connection to the
        first process by the index 0.

    Raises:
        ClusterError: a process did not start in time, or the first process cannot listen at its port.
        UsageError: two processes have the same index, or disagree about the number of processes.
    """
    wait_limit = _WaitLimit(group, timeout_seconds)
    return _meet_as_first(group, wait_limit) if group.index == 0 else _meet_as_other(group, wait_limit)


class _WaitLimit:
    """Limit of the time that this process waits for other processes; also logs the wait."""

    def __init__(self, group: ProcessGroup, timeout_seconds: float) -> None:
        self._group = group
        self._timeout_seconds = timeout_seconds
        self._start_time = time.monotonic()
        self._has_logged = False

    def check(self, missing: str) -> None:
        """Warn once after 2 s, or after half the timeout if that is shorter; raise ClusterError once the time is up.

        Args:
            missing: description of the processes that have not arrived.
        """
        waited_seconds = time.monotonic() - self._start_time
        timeout_seconds = self._timeout_seconds
        if waited_seconds >= timeout_seconds:
            raise ClusterError(
                f"{self._group.origin}: {self._group.name} waited {timeout_seconds:g} s for other processes of the cluster (got no "
                f"answer from {missing}). Start all of them, and check that {self._group.coordinator} can be reached."
            )
        if waited_seconds >= min(_QUIET_SECONDS, timeout_seconds / 2) and not self._has_logged:
            self._has_logged = True
            _log.warning(
                "%s: %s waits for %s, for %g s at most (RunConfig's session_creation_timeout_secs). Start all processes.",
                self._group.origin,
                self._group.name,
                missing,
                timeout_seconds,
            )

    def log_end(self) -> None:
        """Log that all processes joined, if the wait was logged."""
        # This is a warning, too, so that everyone who saw the message of the wait sees this one.
        if self._has_logged:
            _log.warning("%s: all processes of the cluster run.", self._group.origin)


def _meet_as_first(group: ProcessGroup, wait_limit: _WaitLimit) -> dict[int, socket.socket]:
    """Listen until all other processes have arrived, send them `go`, and return their connections by index."""
    arrived: dict[int, socket.socket] = {}  # Connections by the index of the process.
    newcomers: dict[socket.socket, float] = {}  # Connections without a line so far, and when each was accepted.
    with _listen(group) as server, contextlib.ExitStack() as connections:
        while len(arrived) < group.count - 1:
            wait_limit.check(group.describe(group.list_missing(arrived)))
            arrived_before = set(arrived)
            ready_sockets: list[Any] = wait([server, *newcomers, *arrived.values()], _TRY_SECONDS)
            # Newcomers come last, once ended connections are removed: a process that was started again may have its old index.
            for ready in sorted(ready_sockets, key=lambda ready: ready in newcomers):
                if ready is server:
                    with contextlib.suppress(OSError):  # The connection has already ended.
                        connection = connections.enter_context(server.accept()[0])
                        connection.settimeout(_TRY_SECONDS)
                        newcomers[connection] = time.monotonic()
                elif ready in newcomers:
                    newcomers.pop(ready)
                    if not _admit(group, ready, arrived):
                        ready.close()
                else:  # A process sends nothing after its line, so its connection has ended.
                    arrived = {index: connection for index, connection in arrived.items() if connection is not ready}
                    ready.close()
            _close_silent(newcomers)
            if set(arrived) != arrived_before:
                _send_line(arrived, f"missing {group.describe(group.list_missing(arrived))}")
        _send_line(arrived, "go")
        for newcomer in newcomers:
            newcomer.close()
        connections.pop_all()  # Leaves the connections of `arrived` open.
    wait_limit.log_end()
    return arrived


def _close_silent(newcomers: dict[socket.socket, float]) -> None:
    """Close and remove the connections that have sent no line for too long.

    Args:
        newcomers: connections that have sent no line yet, and the monotonic time at which each was accepted.
    """
    earliest_time = time.monotonic() - _CONNECT_SECONDS
    for connection, accepted_time in list(newcomers.items()):
        if accepted_time < earliest_time:
            newcomers.pop(connection)
            connection.close()


def _send_line(arrived: dict[int, socket.socket], line: str) -> None:
    """Send a line to the processes that have arrived; ignore ended connections, which the next wait notices."""
    for connection in arrived.values():
        with contextlib.suppress(OSError):
            connection.sendall(f"{line}\n".encode())


def _admit(group: ProcessGroup, connection: socket.socket, arrived: dict[int, socket.socket]) -> bool:
    """Read the line of a newcomer, add it to `arrived` if it is a process of the group, and return whether it is.

    A line in several pieces is rejected, and the process tries again: waiting for more would let strangers block the meeting.
    """
    try:
        line = connection.recv(_LINE_BYTES).decode()
        name, *numbers = line.split()
        index, count = map(int, numbers)
        if name != "tpudata" or not line.endswith("\n"):
            return False
        reason = ""
        if count != group.count:
            reason = (
                f"it is one of {count_text(count, 'process', 'processes')}, and {group.name} waits for {group.count}"
            )
        elif index in arrived or not 0 < index < group.count:
            reason = f"another process has its number, {index}"
        if reason:
            connection.sendall(f"no {reason}\n".encode())
            return False
    except (OSError, ValueError):  # The connection has ended, or its bytes are not a line of this protocol.
        return False
    arrived[index] = connection
    return True


def _meet_as_other(group: ProcessGroup, wait_limit: _WaitLimit) -> dict[int, socket.socket]:
    """Connect to the first process, again until it sends `go`, and return the connection as {0: connection}."""
    while True:
        connection = _connect(group, wait_limit)
        try:
            if _await_go(group, connection, wait_limit):
                wait_limit.log_end()
                return {0: connection}
        except BaseException:
            connection.close()
            raise
        # Another program listens there, or the first process has ended.
        connection.close()
        time.sleep(_TRY_SECONDS)


def _connect(group: ProcessGroup, wait_limit: _WaitLimit) -> socket.socket:
    """Return a connection to the first process; a thread makes it, because the look-up of a host may block for long."""
    connections: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    has_stopped = threading.Event()

    def attempt() -> None:
        """Put a connection into the queue as soon as one can be made, unless the caller has stopped waiting."""
        while not has_stopped.is_set():
            with contextlib.suppress(OSError):
                connection = socket.create_connection(split_address(group.coordinator), _CONNECT_SECONDS)
                # Without a listener on this machine, a socket may get the very port that it connects to, and meet itself.
                if connection.getsockname() != connection.getpeername():
                    connections.put(connection)
                    return
                connection.close()
            has_stopped.wait(_TRY_SECONDS)

    threading.Thread(target=attempt, name="tpudata-rendezvous", daemon=True).start()
    try:
        while True:
            wait_limit.check(group.describe([0]))
            with contextlib.suppress(queue.Empty):
                return connections.get(timeout=_TRY_SECONDS)
    finally:
        has_stopped.set()


def _await_go(group: ProcessGroup, connection: socket.socket, wait_limit: _WaitLimit) -> bool:
    """Wait until the first process sends `go`; return False if the connection ends or speaks another protocol.

    Raises:
        UsageError: the first process rejects this one.
        ClusterError: the time is up.
    """
    missing = group.describe([0])
    line = b""
    connection.settimeout(_TRY_SECONDS)
    try:
        connection.sendall(f"tpudata {group.index} {group.count}\n".encode())
        while len(line) < _LINE_BYTES:
            wait_limit.check(missing)
            try:
                byte = connection.recv(1)  # Bytes after the last line are messages of `Link`.
            except TimeoutError:
                continue
            line += byte
            if not byte:
                return False
            if byte != b"\n":
                continue
            word, _, details = line.decode().strip().partition(" ")
            line = b""
            if word == "go":
                return True
            if word == "no":
                raise UsageError(
                    f"{group.origin}: {group.name} does not belong to the process at {group.coordinator}: {details}. Give all "
                    "processes the same cluster, and each a different number."
                )
            if word != "missing":
                return False
            missing = details
    except (OSError, ValueError):  # The connection has ended, or its bytes are not text.
        pass
    return False


@contextlib.contextmanager
def _listen(group: ProcessGroup) -> Iterator[socket.socket]:
    """Listen at the coordinator's port inside the context; raise ClusterError if the port is in use or not allowed."""
    try:
        server = _create_server(split_address(group.coordinator)[1])
    except OSError as error:
        raise ClusterError(
            f"{group.origin}: {group.name} cannot listen at its address {group.coordinator}: {error.strerror or error}. End the "
            "process that uses the port, or choose another one."
        ) from None
    with server:
        server.settimeout(_TRY_SECONDS)
        yield server


def _create_server(port: int) -> socket.socket:
    """Return a socket that listens at a port, for IPv6 as well if this machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            # Other errors mean that IPv6 is switched off; IPv4 may still work.
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port))


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT; grpc:// before it and brackets around an IPv6 address are dropped."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    return host.strip("[]"), int(port)
