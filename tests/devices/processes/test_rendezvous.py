"""Waiting for a cluster's processes: it names them, can be interrupted, and is bounded."""

import contextlib
import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import Forked
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.devices.processes.rendezvous import meet
from tpudata.errors import TpudataError, UsageError
from tpudata.estimator import ClusterError


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def groups(count: int, host: str = "127.0.0.1") -> list[ProcessGroup]:
    address = f"{host}:{free_ports(1)[0]}"
    names = tuple(f"process {index}" for index in range(count))
    return [ProcessGroup("RunConfig", address, names, index) for index in range(count)]


def meet_all(started: Sequence[ProcessGroup], delay: float = 0, limit: float = 20) -> list[dict[int, socket.socket]]:
    """Let processes meet, each in a thread, and start some time after each other."""

    def start(place: int) -> dict[int, socket.socket]:
        time.sleep(place * delay)
        return meet(started[place], limit)

    with ThreadPoolExecutor(len(started)) as threads:
        return [future.result() for future in [threads.submit(start, place) for place in range(len(started))]]


def assert_connected(connections: dict[int, socket.socket], others: Sequence[dict[int, socket.socket]]) -> None:
    """Check that the first process's connections lead to the others, and close them."""
    assert sorted(connections) == list(range(1, len(others) + 1))
    for number, other in enumerate(others, 1):
        connections[number].sendall(bytes([number]))
        assert other[0].recv(1) == bytes([number])
        other[0].close()
        connections[number].close()


@pytest.mark.parametrize("last_is_first", [False, True])
def test_processes_that_start_at_different_times_meet(last_is_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    started = groups(3)
    found = meet_all(started[::-1] if last_is_first else started, 0.3)
    first, *others = found[::-1] if last_is_first else found
    assert_connected(first, others)
    assert not caplog.records
    # The port is free for jax.
    with socket.create_server(("127.0.0.1", int(started[0].coordinator.rpartition(":")[2]))):
        pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_processes_meet_at_ipv6_addresses() -> None:
    first, *others = meet_all(groups(2, "[::1]"))
    assert_connected(first, others)


def test_ignores_strangers() -> None:
    first, second = groups(2)
    host, _, port = first.coordinator.rpartition(":")
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(meet, first, 20)
        time.sleep(0.3)
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"tpudata x 2\n", b""):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(text)
        other = meet(second, 20)
        assert_connected(waits.result(), [other])


def send_bytes_one_by_one(connection: socket.socket, waits: Future[Any]) -> None:
    """Send a byte now and then until a meeting has ended, for a minute at most."""
    for _ in range(600):
        if waits.done():
            return
        with contextlib.suppress(OSError):
            connection.sendall(b"a")
        time.sleep(0.1)


def test_a_slow_stranger_does_not_extend_the_wait() -> None:
    (first, _) = groups(2)
    host, _, port = first.coordinator.rpartition(":")
    with ThreadPoolExecutor(1) as threads:
        begin = time.monotonic()
        waits = threads.submit(meet, first, 2)
        time.sleep(0.3)
        with socket.create_connection((host, int(port))) as stranger:
            send_bytes_one_by_one(stranger, waits)
        assert isinstance(failure(waits), ClusterError)
        assert time.monotonic() - begin < 18


def test_a_slow_server_does_not_extend_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        names = ("process 0", "process 1")
        group = ProcessGroup("RunConfig", f"127.0.0.1:{server.getsockname()[1]}", names, 1)
        begin = time.monotonic()
        waits = threads.submit(meet, group, 2)
        connection, _ = server.accept()
        with connection:
            send_bytes_one_by_one(connection, waits)
        assert isinstance(failure(waits), ClusterError)
        assert time.monotonic() - begin < 18


def test_disconnects_a_silent_stranger() -> None:
    first, second = groups(2)
    host, _, port = first.coordinator.rpartition(":")
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(meet, first, 30)
        time.sleep(0.3)
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            assert stranger.recv(1) == b""
        other = meet(second, 20)
        assert_connected(waits.result(), [other])


def test_a_restarted_process_takes_its_place() -> None:
    first, second, third = groups(3)
    host, _, port = first.coordinator.rpartition(":")
    with ThreadPoolExecutor(3) as threads:
        waits = threads.submit(meet, first, 20)
        time.sleep(0.3)
        with socket.create_connection((host, int(port))) as ended:
            ended.sendall(b"tpudata 1 3\n")
            assert ended.makefile().readline() == "missing process 2\n"
        time.sleep(0.3)
        others = [threads.submit(meet, group, 20) for group in (second, third)]
        assert_connected(waits.result(), [other.result() for other in others])


def failure(future: Future[Any]) -> TpudataError:
    error = future.exception(20)
    assert isinstance(error, TpudataError)
    return error


def test_rejects_two_processes_with_one_number_or_another_count() -> None:
    first, second, _ = groups(3)
    two = ProcessGroup("RunConfig", first.coordinator, first.names[:2], 1)
    with ThreadPoolExecutor(4) as threads:
        # The first process ends before the second, which it would miss, too.
        waits, _ = threads.submit(meet, first, 3), threads.submit(meet, second, 4)
        time.sleep(0.5)
        again, fewer = failure(threads.submit(meet, second, 3)), failure(threads.submit(meet, two, 3))
        assert isinstance(again, UsageError)
        assert "another process has its number, 1" in str(again)
        assert isinstance(fewer, UsageError)
        assert "it is one of 2 processes, and process 0 waits for 3" in str(fewer)
        assert "got no answer from process 2)" in str(failure(waits))


@pytest.mark.parametrize("index", [0, 1], ids=["first", "other"])
def test_a_wait_ends_at_its_limit_and_names_the_missing_process(index: int, caplog: pytest.LogCaptureFixture) -> None:
    group = groups(3)[index]
    who = "process 1 and 1 more" if index == 0 else "process 0"
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING, "tpudata"), pytest.raises(ClusterError) as caught:
        meet(group, 1.5)
    assert time.monotonic() - begin < 15
    assert f"waited 1.5 s for other processes of the cluster (got no answer from {who})" in str(caught.value)
    assert [record.message for record in caplog.records] == [
        f"RunConfig: process {index} waits for {who}, for 1.5 s at most (RunConfig's session_creation_timeout_secs). Start all "
        "processes."
    ]


def test_reports_a_port_in_use_at_once() -> None:
    with socket.create_server(("", 0)) as taken:
        group = ProcessGroup("TF_CONFIG", f"127.0.0.1:{taken.getsockname()[1]}", ("chief 0", "worker 0"), 0)
        with pytest.raises(
            ClusterError, match=r"chief 0 cannot listen at its address 127\.0\.0\.1:\d+: Address already in use"
        ):
            meet(group, 60)


def test_a_signal_interrupts_the_wait() -> None:
    (first, _) = groups(2)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        meet(first, 60)
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("job", ["chief", pytest.param("worker", marks=pytest.mark.matrix)])
def test_signals_end_a_waiting_process(job: str, number: int, digits_dataset: Path, tmp_path: Path) -> None:
    ports = free_ports(2)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    text = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
    words = [f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}", "--model=mnist_cnn", "--train-steps=2"]
    with Forked("-m", "tpudata.train", *words, environment={"TF_CONFIG": text}) as process:
        process.wait_for(f"TF_CONFIG: {job} 0 waits for {'worker' if job == 'chief' else 'chief'} 0")
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) != 0
        assert time.monotonic() - begin < 15
        assert "Traceback" not in process.output
