"""SIGTERM and Ctrl-C while a command works.

Its commands are small programs that catch the signal, or whose threads go on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from tpudata.console.signals import Terminated, defer_signals, interruptible

STUBBORN = """
import os, signal, sys, threading, time
from tpudata.console import process, signals

def command(argv):
    {sleeper}
    with signals.interruptible(lambda: os.write(1, b"stop\\n"), lambda: os.write(1, b"tidy\\n")):
        {work}
    return 0

signals._GRACE_SECONDS = 0.2
sys.exit(process.run_command(command))
"""
YIELDS = "os.write(1, b'begun\\n'); time.sleep(600)"
SWALLOWS = f"""
        while True:
            try: {YIELDS}
            except KeyboardInterrupt: pass
"""
# A thread that the interpreter would wait for when it ends.
SLEEPER = "threading.Thread(target=time.sleep, args=(600,)).start()"
SIGTERM, SIGINT = (
    (signal.SIGTERM, (143, "tpudata: ended by SIGTERM\n")),
    (signal.SIGINT, (130, "tpudata: interrupted\n")),
)


@pytest.mark.parametrize(
    ("number", "end", "sleeper", "work", "said"),
    [
        pytest.param(*SIGTERM, "", YIELDS, "stop\n", id="SIGTERM-yields"),
        pytest.param(*SIGINT, "", SWALLOWS, "stop\ntidy\n", id="SIGINT-swallows it"),
        pytest.param(*SIGTERM, SLEEPER, YIELDS, "stop\n", id="SIGTERM-leaves a thread"),
        # Both signals take one way.
        pytest.param(*SIGINT, "", YIELDS, "stop\n", id="SIGINT-yields", marks=pytest.mark.matrix),
        pytest.param(*SIGTERM, "", SWALLOWS, "stop\ntidy\n", id="SIGTERM-swallows it", marks=pytest.mark.matrix),
        pytest.param(*SIGINT, SLEEPER, YIELDS, "stop\n", id="SIGINT-leaves a thread", marks=pytest.mark.matrix),
    ],
)
def test_an_interrupt_ends_the_process_soon(
    number: signal.Signals, end: tuple[int, str], sleeper: str, work: str, said: str
) -> None:
    program = STUBBORN.format(sleeper=sleeper, work=work)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == end
    assert [word for word in out.split() if word != "begun"] == said.split()


def test_an_interrupt_ends_no_program_but_its_own_command() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stopped = threading.Event()
    with pytest.raises(KeyboardInterrupt) as found, interruptible(stopped.set, pytest.fail):
        signal.raise_signal(signal.SIGTERM)
    assert type(found.value) is Terminated
    assert stopped.wait(60)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_wrapped_interrupt_is_one() -> None:
    def step() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("a step failed") from error

    with pytest.raises(KeyboardInterrupt), interruptible(lambda: None, lambda: None):
        step()


def test_a_program_keeps_its_own_handler() -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *args: received.append(args[0]))
    try:
        with interruptible(lambda: None, lambda: None):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_defers_signals_until_the_end() -> None:
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in (2, 15)}
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert received == []
        assert sorted(received) == [2, 15]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
