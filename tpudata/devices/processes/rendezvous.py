"""Meeting of the processes of a run, before jax joins them.

jax waits for the others inside its runtime, where neither SIGTERM nor Ctrl-C reaches Python, and prints nothing. So the first
process listens at the coordinator's address, which jax's own service takes afterwards, and the others connect to it. Each then
knows who is missing. The connections stay: by them the processes agree (cluster_peers.py), and notice the end of one.

Lines of text: an arrival sends `tpudata NUMBER COUNT`; the first process answers with `missing NUMBERS`, again whenever that
changes, `no REASON`, or, to all at once, `go`.
"""

import contextlib
import errno
import logging
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from tpudata.console.tables import counted
from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.errors import UsageError

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

    def check(self, missing: Sequence[int]) -> None:
        """Warn once after a moment, and raise a ClusterError at the limit."""
        waited = time.monotonic() - self._started
        who, limit = self._group.describe(missing), self._limit
        if waited >= limit:
            raise ClusterError(
                f"{self._group.origin}: {self._group.name} waited {limit:g} s for other processes of the cluster (got no answer "
                f"from {who}). Start all of them, and check that {self._group.coordinator} can be reached."
            )
        if waited >= min(_QUIET_SECONDS, limit / 2) and not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: %s waits for %s, for %g s at most (RunConfig's session_creation_timeout_secs). Start all processes.",
                self._group.origin,
                self._group.name,
                who,
                limit,
            )

    def end(self) -> None:
        """Report the end of a wait that was reported."""
        if self._has_told:
            _log.warning("%s: all processes of the cluster run.", self._group.origin)


def _gather(group: ProcessGroup, waiting: _Waiting) -> dict[int, socket.socket]:
    """Meet as the first process."""
    arrived: dict[int, socket.socket] = {}
    with _listening(group) as server, selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        selector.register(server, selectors.EVENT_READ)

        def leave(connection: socket.socket) -> None:
            selector.unregister(connection)
            connection.close()
            for number in [number for number, item in arrived.items() if item is connection]:
                del arrived[number]

        while len(arrived) < group.count - 1:
            waiting.check(group.others(arrived))
            before = set(arrived)
            # A short wait, after which Python handles signals.
            for key, _ in selector.select(_TRY_SECONDS):
                if key.fileobj is server:
                    connection, _ = server.accept()
                    opened.enter_context(connection)
                    connection.settimeout(_CONNECT_SECONDS)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                if connection in arrived.values() or not _welcome(group, connection, arrived):
                    leave(connection)
            if set(arrived) != before:
                text = f"missing {' '.join(map(str, group.others(arrived)))}\n"
                for connection in list(arrived.values()):
                    with contextlib.suppress(OSError):
                        connection.sendall(text.encode())
        for connection in arrived.values():
            with contextlib.suppress(OSError):  # Its end is noticed at the first exchange.
                connection.sendall(b"go\n")
        for key in list(selector.get_map().values()):
            if key.fileobj not in (server, *arrived.values()):
                leave(key.fileobj)  # type: ignore[arg-type]
        opened.pop_all()
    waiting.end()
    return arrived


def _welcome(group: ProcessGroup, connection: socket.socket, arrived: dict[int, socket.socket]) -> bool:
    """Read the line of an arrival, and note it; return whether it is one."""
    try:
        words = _line(connection).split()
        if len(words) != 3 or words[0] != "tpudata":
            return False
        number, count = int(words[1]), int(words[2])
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
        connection = _connect(group.coordinator, waiting)
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


def _connect(address: str, waiting: _Waiting) -> socket.socket:
    """Connect to an address, in a thread, as looking up a host may take long."""
    found: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    ended = threading.Event()

    def attempt() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection = socket.create_connection(split_address(address), _CONNECT_SECONDS)
                # Without a listener, a socket of this machine may be given the port that it connects to.
                if connection.getsockname() != connection.getpeername():
                    return found.put(connection)
                connection.close()
            ended.wait(_TRY_SECONDS)
        return None

    threading.Thread(target=attempt, name="tpudata-rendezvous", daemon=True).start()
    try:
        while True:
            waiting.check([0])
            with contextlib.suppress(queue.Empty):
                return found.get(timeout=_TRY_SECONDS)
    finally:
        ended.set()


def _await_go(group: ProcessGroup, connection: socket.socket, waiting: _Waiting) -> bool:
    """Wait for the first process's word to begin; return False if it ended, or is none."""
    missing = [0]
    try:
        connection.sendall(f"tpudata {group.index} {group.count}\n".encode())
        while True:
            waiting.check(missing)
            connection.settimeout(_TRY_SECONDS)
            try:
                if not connection.recv(1, socket.MSG_PEEK):
                    return False
            except TimeoutError:
                continue
            connection.settimeout(_CONNECT_SECONDS)
            word, _, rest = _line(connection).partition(" ")
            if word == "go":
                return True
            if word == "no":
                raise UsageError(
                    f"{group.origin}: {group.name} does not belong to the process at {group.coordinator}: {rest}. Give all "
                    "processes the same cluster, and each another number."
                )
            if word != "missing":
                return False
            missing = [int(number) for number in rest.split()]
    except (OSError, ValueError):
        return False


def _line(connection: socket.socket) -> str:
    """Read a line byte by byte: what follows it is not for the meeting."""
    data = b""
    while not data.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(data) > _LINE_BYTES:
            raise ConnectionError("no line")
        data += byte
    return data.decode().strip()


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
