"""Clusters of plain TensorFlow servers on loopback: processes with none of our code."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Far more than a busy machine takes to import TensorFlow.
_START_SECONDS = 200.0

# One import of TensorFlow for all servers: each is forked before anything of TensorFlow runs.
_PROGRAM = """
import json, os, socket, sys
import tensorflow as tf

def listening():
    found = socket.socket()
    found.bind(("localhost", 0))
    return found

folder, kinds = sys.argv[1], sys.argv[2:]
sockets = [listening() for _ in kinds]
addresses = ["localhost:%d" % found.getsockname()[1] for found in sockets]
for found in sockets:
    found.close()
at = {kind: [a for a, k in zip(addresses, kinds) if k == kind] for kind in kinds}
service = tf.data.experimental.service
for address, kind in zip(addresses, kinds):
    if os.fork():
        continue
    os.chdir(folder)
    port = int(address.rpartition(":")[2])
    if kind == "dispatcher":
        config = service.DispatcherConfig(port=port, worker_addresses=at["service worker"])
        server = service.DispatchServer(config)
    elif kind == "service worker":
        config = service.WorkerConfig(
            dispatcher_address=at["dispatcher"][0], worker_address=address, port=port, heartbeat_interval_ms=20
        )
        server = service.WorkerServer(config)
    else:
        place = at[kind].index(address)
        server = tf.distribute.Server({"worker": at[kind]}, job_name="worker", task_index=place, protocol="grpc")
    ours = [name for name in sys.modules if name.partition(".")[0] in ("tpudata", "beam_jobs")]
    line = json.dumps({"kind": kind, "address": address, "pid": os.getpid(), "ours": ours})
    os.write(1, line.encode() + b"\\n")
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@dataclasses.dataclass(frozen=True)
class Server:
    """One process of a cluster.

    Attributes:
        kind: "dispatcher", "service worker" or "worker", a tf.distribute.Server.
        address: "localhost:PORT".
        pid: its process.
        ours: modules of ours that it has imported.
    """

    kind: str
    address: str
    pid: int
    ours: list[str]

    def read_bytes(self) -> int:
        """Return how many bytes it has read from files so far."""
        return read_bytes(self.pid)


def read_bytes(pid: int | str) -> int:
    """Return how many bytes a process has read from files so far; what it receives from sockets is not counted."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@contextlib.contextmanager
def cluster(folder: Path, kinds: Sequence[str]) -> Iterator[list[Server]]:
    """Run servers, which have `folder` as their current folder, until the block ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder), *kinds],
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            found = [Server(**line) for line in _lines(process, len(kinds), log)]
            yield sorted(found, key=lambda server: list(kinds).index(server.kind))
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            # The servers end with their input. The process that they are forked from would take a second to end.
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()


def _lines(process: subprocess.Popen[bytes], count: int, log: Any) -> list[dict[str, Any]]:
    """Return the first lines of a process, as JSON."""
    assert process.stdout is not None
    read, end = b"", time.monotonic() + _START_SECONDS
    while read.count(b"\n") < count:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        more = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
        if not more:
            log.seek(0)
            raise AssertionError(
                f"{read.count(b'/n')} of {count} servers are up: {log.read().decode(errors='replace')}"
            )
        read += more
    return [json.loads(line) for line in read.splitlines()]
