"""Processes that tests start."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def assert_nobody_is_left(group: int) -> None:
    """Wait, half a minute at most, until a process group has no running process any more."""
    deadline = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            if _has_ended(group):
                return
            time.sleep(0.02)
        pytest.fail(f"process group {group} is still there")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Return whether a process, given by its id, is there and has not ended, as /proc says it."""
    return _stat(process)[0] not in "ZX"


def _has_ended(group: int) -> bool:
    """Return whether /proc has only ended processes of a group: an init of containers may take 2 s to collect orphans."""
    stats = [_stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    states = [state for state, _, group_of_process in stats if int(group_of_process) == group]
    return bool(states) and set(states) <= {"Z", "X"}


def _stat(process: int) -> list[str]:
    """Return the state, the parent and the group of a process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0", "0"]


def ends_while_it_loads(package: str, folder: Path, module: str, *words: str) -> int:
    """Return the exit code of a module that is run with a lifeline, which is cut while the module imports a package."""
    fake = folder / package
    fake.mkdir()
    (fake / "__init__.py").write_text(
        "import pathlib, time; pathlib.Path(__file__).with_name('loads').touch(); time.sleep(60)"
    )
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(reader), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
            pass_fds=[reader],
        )
        deadline = time.monotonic() + 30
        while not (fake / "loads").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None
    finally:
        os.close(writer)
        os.close(reader)
    return process.wait(10)


@contextlib.contextmanager
def running_worker_pool(folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run Beam's pool of external workers.

    Args:
        folder: the working directory of the workers.
        environment: theirs; this Python comes first in its PATH.

    Yields:
        The pool's port on this machine.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    # The pool starts its workers as `python`.
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    with subprocess.Popen(command, cwd=folder, env={**environment, "PATH": path}, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
