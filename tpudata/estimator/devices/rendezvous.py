"""Meeting of the processes of a run, before jax joins them.

jax waits for the others inside its runtime, where neither SIGTERM nor Ctrl-C reaches Python, and prints nothing. So the first
process listens at the coordinator's address, which jax's own service takes afterwards, and the others connect to it. Each then
knows who is missing. The connections stay: by them the processes agree (cluster_peers.py), and notice the end of one.

Lines of text: an arrival sends `tpudata NUMBER COUNT`; the first process answers with `missing NAMES`, again whenever that
changes, `no REASON`, or, to all at once, `go`. Anything else is a stranger: it is let go, and delays nobody.
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

from tpudata.console.tables import counted
from tpudata.errors import UsageError
from tpudata.estimator.api.errors import ClusterError
from tpudata.estimator.devices.process_group import ProcessGroup

_log = logging.getLogger("tpudata")
_TRY_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
# Processes that are started together meet without a message.
_QUIET_SECONDS = 2.0
_LINE_BYTES = 4096


def meet(group: ProcessGroup, limit: float) -> dict[int, socket.socket]:
    """Wait until all processes of a group run.

    Args:
        group: the processes.
        limit: largest number of seconds to wait.

    Returns:
        A connection to each other process by its number, in the first process; in the others, one to the first.

    Raises:
        ClusterError: a process did not start in time, or this one's port is in use.
        UsageError: two processes have one number, or disagree about how many there are.
    """
    waiting = _Waiting(group, limit)
    return _gather(group, waiting) if group.index == 0 else _arrive(group, waiting)


class _Waiting:
    """The time that this process waits, and whether it has said so."""

    def __init__(self, group: ProcessGroup, limit: float) -> None:
        self._group = group
        self._limit = limit
        self._started = time.monotonic()
        self._has_told = False

    def check(self, missing: str) -> None:
        """Warn once after a moment, and raise a ClusterError at the limit."""
        waited, limit = time.monotonic() - self._started, self._limit
        if waited >= limit:
            raise ClusterError(
                f"{self._group.origin}: {self._group.name} waited {limit:g} s for other processes of the cluster (got no answer "
                f"from {missing}). Start all of them, and check that {self._group.coordinator} can be reached."
            )
        if waited >= min(_QUIET_SECONDS, limit / 2) and not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: %s waits for %s, for %g s at most (RunConfig's session_creation_timeout_secs). Start all processes.",
                self._group.origin,
                self._group.name,
                missing,
                limit,
            )

    def end(self) -> None:
        """Report the end of a wait that was reported."""
        if self._has_told:
            _log.warning("%s: all processes of the cluster run.", self._group.origin)


def _gather(group: ProcessGroup, waiting: _Waiting) -> dict[int, socket.socket]:
    """Meet as the first process."""
    arrived: dict[int, socket.socket] = {}
    strangers: dict[socket.socket, float] = {}  # those that have said nothing, and when they came
    with _listening(group) as server, contextlib.ExitStack() as opened:
        while len(arrived) < group.count - 1:
            waiting.check(group.describe(group.others(arrived)))
            before = set(arrived)
            # A short wait, after which Python handles signals. Ends come first: a process that starts again takes its place.
            ready_ones: list[Any] = wait([server, *strangers, *arrived.values()], _TRY_SECONDS)
            for ready in sorted(ready_ones, key=lambda item: item in strangers):
                if ready is server:
                    with contextlib.suppress(OSError):  # It has gone again.
                        connection = opened.enter_context(server.accept()[0])
                        connection.settimeout(_TRY_SECONDS)
                        strangers[connection] = time.monotonic()
                elif ready in strangers:
                    strangers.pop(ready)
                    if not _welcome(group, ready, arrived):
                        ready.close()
                else:  # It has ended.
                    arrived = {number: item for number, item in arrived.items() if item is not ready}
                    ready.close()
            for stranger in [item for item, since in strangers.items() if time.monotonic() - since > _CONNECT_SECONDS]:
                strangers.pop(stranger)
                stranger.close()
            if set(arrived) != before:
                _tell(arrived, f"missing {group.describe(group.others(arrived))}")
        _tell(arrived, "go")
        for stranger in strangers:
            stranger.close()
        opened.pop_all()
    waiting.end()
    return arrived


def _tell(arrived: dict[int, socket.socket], text: str) -> None:
    """Send a line to the processes that have arrived; the end of one is noticed later."""
    for connection in arrived.values():
        with contextlib.suppress(OSError):
            connection.sendall(f"{text}\n".encode())


def _welcome(group: ProcessGroup, connection: socket.socket, arrived: dict[int, socket.socket]) -> bool:
    """Read the line of an arrival, and note it; return whether it is one.

    The line comes in one piece, or else the process has to try again: to wait for more would let strangers stop the meeting.
    """
    try:
        line = connection.recv(_LINE_BYTES).decode()
        name, *numbers = line.split()
        number, count = map(int, numbers)
        if name != "tpudata" or not line.endswith("\n"):
            return False
        reason = ""
        if count != group.count:
            reason = f"it is one of {counted(count, 'process', 'processes')}, and {group.name} waits for {group.count}"
        elif number in arrived or not 0 < number < group.count:
            reason = f"another process has its number, {number}"
        if reason:
            connection.sendall(f"no {reason}\n".encode())
            return False
    except (OSError, ValueError):
        return False
    arrived[number] = connection
    return True


def _arrive(group: ProcessGroup, waiting: _Waiting) -> dict[int, socket.socket]:
    """Meet as another process than the first."""
    while True:
        connection = _connect(group, waiting)
        try:
            if _await_go(group, connection, waiting):
                waiting.end()
                return {0: connection}
        except BaseException:
            connection.close()
            raise
        # Something else listens there, or the first process has ended.
        connection.close()
        time.sleep(_TRY_SECONDS)


def _connect(group: ProcessGroup, waiting: _Waiting) -> socket.socket:
    """Connect to the first process, in a thread, as looking up a host may take long."""
    found: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    ended = threading.Event()

    def attempt() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection = socket.create_connection(split_address(group.coordinator), _CONNECT_SECONDS)
                # Without a listener, a socket of this machine may be given the port that it connects to.
                if connection.getsockname() != connection.getpeername():
                    return found.put(connection)
                connection.close()
            ended.wait(_TRY_SECONDS)
        return None

    threading.Thread(target=attempt, name="tpudata-rendezvous", daemon=True).start()
    try:
        while True:
            waiting.check(group.describe([0]))
            with contextlib.suppress(queue.Empty):
                return found.get(timeout=_TRY_SECONDS)
    finally:
        ended.set()


def _await_go(group: ProcessGroup, connection: socket.socket, waiting: _Waiting) -> bool:
    """Wait for the first process's word to begin; return False if it ended, or is none."""
    missing, line = group.describe([0]), b""
    connection.settimeout(_TRY_SECONDS)
    try:
        connection.sendall(f"tpudata {group.index} {group.count}\n".encode())
        while len(line) < _LINE_BYTES:
            waiting.check(missing)
            try:
                byte = connection.recv(1)  # What follows the last line is not for the meeting.
            except TimeoutError:
                continue
            line += byte
            if not byte:
                return False
            if byte != b"\n":
                continue
            word, _, rest = line.decode().strip().partition(" ")
            line = b""
            if word == "go":
                return True
            if word == "no":
                raise UsageError(
                    f"{group.origin}: {group.name} does not belong to the process at {group.coordinator}: {rest}. Give all "
                    "processes the same cluster, and each another number."
                )
            if word != "missing":
                return False
            missing = rest
    except (OSError, ValueError):
        pass
    return False


@contextlib.contextmanager
def _listening(group: ProcessGroup) -> Iterator[socket.socket]:
    """Listen at the coordinator's port."""
    try:
        server = _server(split_address(group.coordinator)[1])
    except OSError as error:
        raise ClusterError(
            f"{group.origin}: {group.name} cannot listen at its address {group.coordinator}: {error.strerror or error}. End the "
            "process that uses the port, or choose another one."
        ) from None
    with server:
        server.settimeout(_TRY_SECONDS)
        yield server


def _server(port: int) -> socket.socket:
    """Listen at a port, for IPv6 as well if this machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port))


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT, with brackets around a host of IPv6 or without."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    return host.strip("[]"), int(port)
