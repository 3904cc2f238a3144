"""Exchanges between processes, simulated by connected threads of this process."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.forked import Forked
from tpudata.devices.processes.cluster_peers import ClusterPeers
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.estimator import ClusterError

T = TypeVar("T")
NAMES = ("chief 0 (a:1)", "worker 0 (b:1)", "worker 1 (c:1)")


Connect = Callable[[int], tuple[list[ClusterPeers], list[socket.socket]]]


@pytest.fixture
def connect_peers() -> Iterator[Connect]:
    """Return a number of processes that are connected, and the first one's connections."""

    def connect(count: int) -> tuple[list[ClusterPeers], list[socket.socket]]:
        servers = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count - 1)]
        others = [socket.create_connection(server.getsockname()) for server in servers]
        firsts = [opened.enter_context(server.accept()[0]) for server in servers]
        groups = [ProcessGroup("TF_CONFIG", "a:1", NAMES[:count], index) for index in range(count)]
        peers = [ClusterPeers(groups[0], {number: item.dup() for number, item in enumerate(firsts, 1)})]
        peers += [ClusterPeers(group, {0: other}) for group, other in zip(groups[1:], others, strict=True)]
        return peers, firsts

    with ExitStack() as opened:
        yield connect


def at_once(peers: list[ClusterPeers], call: Callable[[Peers], T]) -> list[T]:
    """Call a function in all processes."""
    with ThreadPoolExecutor(len(peers)) as threads:
        return [future.result(20) for future in [threads.submit(call, item) for item in peers]]


def test_all_processes_get_the_same_numbers(connect_peers: Connect) -> None:
    peers, _ = connect_peers(3)
    assert [item.is_chief for item in peers] == [True, False, False]
    large = 2**62
    sums = at_once(peers, lambda item: item.sum_numbers([item.index, large * (item.index == 1), -1]))
    assert sums == [[3, large, -3]] * 3
    assert at_once(peers, lambda item: item.min_numbers([item.index, -item.index])) == [[0, -2]] * 3
    assert at_once(peers, lambda item: item.any(item.index == 2)) == [True] * 3
    assert at_once(peers, lambda item: item.any(False)) == [False] * 3
    assert at_once(peers, lambda item: item.broadcast_number(5 + item.index)) == [5] * 3
    assert at_once(peers, lambda item: item.sum_numbers([])) == [[]] * 3


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 100_000], ids=["none", "one", "26 MB"])
def test_all_processes_get_the_chiefs_bytes(data: bytes, connect_peers: Connect) -> None:
    peers, _ = connect_peers(3)
    assert at_once(peers, lambda item: item.broadcast_bytes(data if item.is_chief else b"other")) == [data] * 3


def test_all_processes_get_the_chiefs_values_of_every_dtype(connect_peers: Connect) -> None:
    peers, _ = connect_peers(2)

    def values(index: int) -> dict[str, Any]:
        numbers = tf.range(4) + index
        found = {dtype.name: tf.cast(numbers, dtype) for dtype in (tf.float32, tf.bfloat16, tf.int64, tf.uint8)}
        return found | {
            "scalar": tf.constant(1.5 + index),
            "text": tf.constant([f"of {index}"]),
            "empty": tf.zeros([0, 3]),
        }

    expected = {name: value.numpy() for name, value in values(0).items()}
    for found in at_once(peers, lambda item: item.broadcast_values(values(item.index))):
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert value.dtype == values(0)[name].dtype
            np.testing.assert_array_equal(value.numpy(), expected[name])


def test_processes_in_different_calls_get_an_error(connect_peers: Connect) -> None:
    peers, _ = connect_peers(2)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(peers[1].min_numbers, [1])
        with pytest.raises(ClusterError, match="chief 0 and another process do different things"):
            peers[0].sum_numbers([1])
        peers[0].announce_end()
        with pytest.raises(ClusterError):
            raise other.exception(20) or AssertionError


def test_the_next_exchange_names_a_killed_process(connect_peers: Connect) -> None:
    peers, connections = connect_peers(3)
    connections[1].shutdown(socket.SHUT_RDWR)  # as of worker 1, after a kill
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(peers[1].sum_numbers, [1])
        with pytest.raises(ClusterError, match=r"chief 0 lost .*: worker 1 \(c:1\) was killed or cannot be reached"):
            peers[0].sum_numbers([1])
        peers[0].announce_end()
        connections[0].shutdown(socket.SHUT_RDWR)
        # It is not connected to worker 1.
        with pytest.raises(ClusterError, match=r"worker 0 lost .*: worker 1 \(c:1\) was killed"):
            raise waits.exception(20) or AssertionError


@pytest.mark.parametrize("data", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", bytes(64)], ids=["length", "http", "zeros"])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_foreign_bytes_raise_an_error_in_one_line(data: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stranger = socket.create_connection(server.getsockname())
        peers = ClusterPeers(ProcessGroup("TF_CONFIG", "a:1", NAMES[:2], 0), {1: server.accept()[0]})
    stranger.sendall(data)
    with ThreadPoolExecutor(1) as threads, stranger:
        error = threads.submit(peers.sum_numbers, [1]).exception(20)
    assert isinstance(error, ClusterError)
    assert "\n" not in str(error)


def test_an_orderly_end_is_not_reported_as_a_kill(connect_peers: Connect) -> None:
    peers, connections = connect_peers(2)
    peers[1].announce_end()
    connections[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(ClusterError, match=r"worker 0 \(b:1\) has ended"):
        peers[0].sum_numbers([1])


def test_device_errors_after_a_kill_name_the_process_in_one_line(connect_peers: Connect) -> None:
    peers, connections = connect_peers(2)
    connections[0].shutdown(socket.SHUT_RDWR)
    text = "UNKNOWN: Gloo all-reduce failed: [external/gloo] Connection closed by peer [127.0.0.1]:1\nmore"
    with pytest.raises(ClusterError) as caught, peers[0].translate_errors():
        raise ValueError(text)
    assert "worker 0 (b:1) was killed or cannot be reached" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("UNKNOWN: a shape"),
        RuntimeError("a bug"),
        tf.errors.UnavailableError(None, None, "Connection reset by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_pass_unchanged(error: Exception, connect_peers: Connect) -> None:
    peers, _ = connect_peers(2)
    with pytest.raises(type(error)) as caught, peers[0].translate_errors():
        raise error
    assert caught.value is error


STUCK = """
import logging, socket, sys, time
from tests.devices.processes.test_cluster_peers import NAMES
from tpudata.devices.processes.cluster_peers import ClusterPeers
from tpudata.devices.processes.process_group import ProcessGroup
connection = socket.create_connection(("127.0.0.1", {port}))
peers = ClusterPeers(ProcessGroup("TF_CONFIG", "a:1", NAMES[:2], 1), {{0: connection}}, stuck_seconds=1)
if {waits}:
    with peers.limit_wait():
        time.sleep({seconds})
time.sleep(3)
print("goes on")
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize(("waits", "seconds", "code"), [(True, 60, 1), (True, 0.2, 0), (False, 0, 0)])
def test_a_hanging_wait_for_devices_ends_with_an_error(waits: bool, seconds: float, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = STUCK.format(port=server.getsockname()[1], waits=waits, seconds=seconds)
        with Forked("-c", program) as process:
            connection, _ = server.accept()
            connection.close()
            begin = time.monotonic()
            assert process.wait(50) == code
            assert time.monotonic() - begin < 30
            assert ("goes on" in process.stdout) == (code == 0)
            lines = [line for line in process.stderr.splitlines() if "ClusterError: TF_CONFIG: worker 0 lost" in line]
            assert len(lines) == code


FORKED = """
import os, signal, socket, time
from tests.devices.processes.test_cluster_peers import NAMES
from tpudata.devices.processes.cluster_peers import ClusterPeers
from tpudata.devices.processes.process_group import ProcessGroup
connection = socket.create_connection(("127.0.0.1", {port}))
peers = ClusterPeers(ProcessGroup("TF_CONFIG", "a:1", NAMES[:2], 1), {{0: connection}})
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print("forked", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_does_not_hide_its_parents_end() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Forked("-c", FORKED.format(port=server.getsockname()[1])) as process,
    ):
        connection, _ = server.accept()
        peers = ClusterPeers(ProcessGroup("TF_CONFIG", "a:1", NAMES[:2], 0), {1: connection})
        process.wait(20)
        begin = time.monotonic()
        with pytest.raises(ClusterError, match="was killed"):
            peers.sum_numbers([1])
        assert time.monotonic() - begin < 20
