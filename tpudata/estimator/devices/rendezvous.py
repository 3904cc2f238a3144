"""Meeting of the processes of a cluster, before TensorFlow joins them.

TensorFlow waits for the others inside its runtime, where neither SIGTERM nor Ctrl-C reaches Python, and prints nothing. So a
process first listens at its address, and waits in Python until each of the others does, too, or already runs TensorFlow's server.
"""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping

from tpudata.estimator.api.errors import ClusterError

_log = logging.getLogger("tpudata")
_TRY_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
# Processes that are started together meet without a message.
_QUIET_SECONDS = 2.0


def meet(own: str, addresses: Mapping[str, str], limit: float) -> None:
    """Wait until all processes of a cluster run.

    Args:
        own: name of this process, such as "chief 0".
        addresses: HOST:PORT of each process by name, including this one.
        limit: largest number of seconds to wait.

    Raises:
        ClusterError: a process did not start in time, or this one's port is in use.
    """
    others = {name: address for name, address in addresses.items() if name != own}
    with _listening(own, addresses[own]), _probing(others) as missing:
        started = time.monotonic()
        has_told = False
        # A short sleep, after which Python handles signals.
        while missing:
            waited = time.monotonic() - started
            if waited >= limit:
                raise ClusterError(
                    f"TF_CONFIG: {own} waited {limit:g} s for other processes of the cluster (got no answer from "
                    f"{_listed(missing)}). Start all tasks, and check that their addresses can be reached."
                )
            if waited >= _QUIET_SECONDS and not has_told:
                has_told = True
                _log.warning(
                    "TF_CONFIG: %s waits for %s, for %g s at most (RunConfig's session_creation_timeout_secs). Start all tasks.",
                    own,
                    _listed(missing),
                    limit,
                )
            time.sleep(min(_TRY_SECONDS, max(0.0, limit - waited)))
        if has_told:
            _log.warning("TF_CONFIG: all processes of the cluster run.")


def _listed(missing: Mapping[str, str]) -> str:
    name, address = next(iter(dict(missing).items()), ("", ""))
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{name} ({address}){more}"


@contextlib.contextmanager
def _listening(own: str, address: str) -> Iterator[None]:
    """Accept connections at the port of this process, to which TensorFlow's server then listens."""
    _, port = _split(address)
    try:
        server = _server(port)
    except OSError as error:
        raise ClusterError(
            f"TF_CONFIG: {own} cannot listen at its address {address}: {error.strerror or error}. End the process that uses "
            "the port, or choose another one."
        ) from None
    with server:
        yield


@contextlib.contextmanager
def _probing(others: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the processes that have not answered yet, by name; a thread for each, as looking up a host may take long."""
    missing = dict(others)
    ended = threading.Event()

    def probe(name: str, address: str) -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), socket.create_connection(_split(address), _CONNECT_SECONDS):
                missing.pop(name, None)
                return
            ended.wait(_TRY_SECONDS)

    for name, address in others.items():
        threading.Thread(target=probe, args=(name, address), name="tpudata-rendezvous", daemon=True).start()
    try:
        yield missing
    finally:
        ended.set()


def _server(port: int) -> socket.socket:
    """Listen at a port, for IPv6 as well if this machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    return host.strip("[]"), int(port)
