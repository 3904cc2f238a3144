"""Processes that end with a lifeline, and so with the process that holds its other end.

Tests start small programs in place of workers that load for seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tpudata.console.lifeline import Lifeline, watch

WORKER = """
import sys, time
from tpudata.console.process import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
# Starts a worker, and is killed.
PARENT = f"""
import os, signal, subprocess, sys
from tpudata.console.lifeline import Lifeline
lifeline = Lifeline()
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}, str(lifeline.reader)], pass_fds=[lifeline.reader])
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def start_worker(lifeline: Lifeline) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, str(lifeline.reader)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[lifeline.reader])
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    return worker


@pytest.mark.parametrize("times", [1, 2])
def test_ends_all_workers_when_it_is_cut(times: int) -> None:
    with Lifeline() as lifeline:
        workers = [start_worker(lifeline), start_worker(lifeline)]
        assert [worker.poll() for worker in workers] == [None, None]
        for _ in range(times):
            lifeline.cut()
        for worker in workers:
            with worker:
                assert worker.wait(30) == 1


def test_has_no_number_of_a_standard_stream() -> None:
    program = (
        "import os; [os.close(number) for number in (0, 2)]\n"
        "from tpudata.console.lifeline import Lifeline; print(Lifeline().reader > 2)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "True\n"


def test_ends_a_worker_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.stdin.close()
        # The worker holds the same stdout, whose end of file comes with its end.
        assert parent.stdout.read() == b""
        assert parent.wait(30) == -signal.SIGKILL


def test_closes_its_descriptors_once() -> None:
    lifeline, has_ended = Lifeline(), threading.Event()
    other = os.dup(lifeline.reader)
    watch(other, has_ended.set)
    assert not has_ended.wait(0.1)
    lifeline.close()
    assert has_ended.wait(30)
    lifeline.cut()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(lifeline.reader)
    os.close(other)
