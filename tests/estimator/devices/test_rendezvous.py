"""Waiting for the processes of a cluster: named, interruptible and bounded."""

import json
import logging
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.helpers.forked import Forked
from tpudata.estimator import ClusterError
from tpudata.estimator.devices.rendezvous import meet


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def test_processes_that_start_at_different_times_meet(caplog: pytest.LogCaptureFixture) -> None:
    addresses = {f"worker {index}": f"127.0.0.1:{port}" for index, port in enumerate(free_ports(3))}
    met = []

    def start(name: str, delay: float) -> None:
        time.sleep(delay)
        meet(name, addresses, 20)
        with socket.create_server(("127.0.0.1", int(addresses[name].rpartition(":")[2]))):  # TensorFlow's server
            met.append(name)
            time.sleep(1)

    threads = [
        threading.Thread(target=start, args=(name, delay)) for name, delay in zip(addresses, (0, 0.3, 0.6), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(met) == sorted(addresses)
    assert not caplog.records


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_processes_meet_at_addresses_of_ipv6() -> None:
    addresses = {f"worker {index}": f"[::1]:{port}" for index, port in enumerate(free_ports(2))}
    met = []

    def start(name: str) -> None:
        meet(name, addresses, 10)
        met.append(name)
        # The other one may still ask.
        with socket.create_server(("::1", int(addresses[name].rpartition(":")[2])), family=socket.AF_INET6):
            time.sleep(0.5)

    threads = [threading.Thread(target=start, args=(name,)) for name in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(met) == sorted(addresses)


def test_a_wait_without_an_answer_ends_at_its_limit_and_names_the_process(caplog: pytest.LogCaptureFixture) -> None:
    own, *others = free_ports(3)
    addresses = {
        "chief 0": f"127.0.0.1:{own}",
        "worker 0": f"127.0.0.1:{others[0]}",
        "worker 1": f"127.0.0.1:{others[1]}",
    }
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING, "tpudata"), pytest.raises(ClusterError) as caught:
        meet("chief 0", addresses, 2.5)
    assert time.monotonic() - begin < 6
    assert f"got no answer from worker 0 (127.0.0.1:{others[0]}) and 1 more" in str(caught.value)
    assert [record.message for record in caplog.records] == [
        f"TF_CONFIG: chief 0 waits for worker 0 (127.0.0.1:{others[0]}) and 1 more, for 2.5 s at most (RunConfig's "
        "session_creation_timeout_secs). Start all tasks."
    ]


def test_a_port_in_use_is_an_error_at_once() -> None:
    with socket.create_server(("", 0)) as taken:
        addresses = {"chief 0": f"127.0.0.1:{taken.getsockname()[1]}", "worker 0": "127.0.0.1:1"}
        with pytest.raises(
            ClusterError, match=r"chief 0 cannot listen at its address 127\.0\.0\.1:\d+: Address already in use"
        ):
            meet("chief 0", addresses, 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.matrix)])
def test_signals_end_a_chief_that_waits(number: int, digits_dataset: Path, tmp_path: Path) -> None:
    ports = free_ports(2)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    words = [f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}", "--model=mnist_cnn", "--train-steps=2"]
    with Forked("-m", "tpudata.train", *words, environment={"TF_CONFIG": text}) as process:
        process.wait_for("TF_CONFIG: chief 0 waits for worker 0")
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) != 0
        assert time.monotonic() - begin < 5
        assert "Traceback" not in process.output
