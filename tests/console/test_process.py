from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tpudata.console.process import Terminated, interruptible, run_command
from tpudata.errors import DatasetError, UsageError


def _raises(error: BaseException) -> int:
    def command(argv: Sequence[str]) -> int:
        raise error

    return run_command(command, [])


def test_returns_the_commands_exit_code() -> None:
    assert run_command(len, ["a", "b"]) == 2


def test_arguments_default_to_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prog", "a"])
    assert run_command(len) == 1


@pytest.mark.parametrize(("error", "code"), [(DatasetError("no manifest"), 1), (UsageError("no flag"), 2)])
def test_prints_our_errors_on_stderr(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _raises(error) == code
    assert capsys.readouterr() == ("", f"tpudata: error: {error}\n")


def test_escapes_newlines_in_error_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raises(DatasetError("a\nb\rc.jpg is cut")) == 1
    assert capsys.readouterr().err == "tpudata: error: a\\nb\\rc.jpg is cut\n"


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        _raises(ZeroDivisionError())


def test_an_interrupt_returns_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raises(KeyboardInterrupt()) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (None, 0), (3, 3), ("words", 1)])
def test_returns_the_code_of_a_system_exit(code: int | str | None, expected: int) -> None:
    assert _raises(SystemExit(code)) == expected


def test_a_closed_pipe_prints_nothing() -> None:
    program = (
        "import sys; from tpudata.console.process import run_command\n"
        "def command(argv):\n    for n in range(10**6): print(n)\n    return 0\n"
        "sys.exit(run_command(command))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


@pytest.mark.parametrize(
    ("lines", "unbuffered", "end"),
    [
        # Each way to end, and each way to print, at least once.
        pytest.param(*case, end, marks=pytest.mark.matrix if case != (1, "") and end != one else ())
        for case, one in (((1, ""), ""), ((1, "1"), "return 0"), ((10**5, ""), "raise TpudataError('first')"))
        for end in ("return 0", "raise SystemExit", "raise TpudataError('first')")
    ],
)
def test_reports_a_full_disk_in_one_line(lines: int, unbuffered: str, end: str) -> None:
    program = (
        "import sys; from tpudata.errors import TpudataError; from tpudata.console.process import run_command\n"
        f"def command(argv):\n    for n in range({lines}): print(n)\n    {end}\n"
        "sys.exit(run_command(command))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "tpudata: error: standard output could not be written: No space left on device."
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_rejects_a_closed_stdout_before_the_command_runs(tmp_path: Path) -> None:
    program = (
        "import sys; from tpudata.console.process import run_command\n"
        "def command(argv):\n    open(argv[0], 'w').close(); print(1); return 0\n"
        "sys.exit(run_command(command))"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" "$2" >&-', sys.executable, program, str(tmp_path / "done")],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "tpudata: error: standard output is closed. Send it to a file or to /dev/null.\n"
    assert not (tmp_path / "done").exists()


def test_an_os_error_of_another_file_keeps_its_traceback() -> None:
    with pytest.raises(FileNotFoundError):
        _raises(FileNotFoundError(2, "No such file", "x"))
    # As raised by a write to another file than stdout.
    with pytest.raises(OSError, match="No space left"):
        _raises(OSError(28, "No space left on device"))


def test_escapes_characters_that_the_terminal_lacks() -> None:
    program = (
        "import sys; from tpudata.console.process import run_command; "
        "sys.exit(run_command(lambda argv: print('na\\xefve') or 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "na\\xefve\n")


STUBBORN = """
import os, signal, sys, threading, time
from tpudata.console import process

def command(argv):
    {sleeper}
    with process.interruptible(lambda: os.write(1, b"stop\\n"), lambda: os.write(1, b"tidy\\n")):
        {work}
    return 0

process._GRACE_SECONDS = 0.2
sys.exit(process.run_command(command))
"""
YIELDS = "os.write(1, b'begun\\n'); time.sleep(60)"
SWALLOWS = f"""
        while True:
            try: {YIELDS}
            except KeyboardInterrupt: pass
"""
# A thread that the interpreter would wait for when it ends.
SLEEPER = "threading.Thread(target=time.sleep, args=(60,)).start()"


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
        # Both signals share their code.
        pytest.param(*SIGINT, "", YIELDS, "stop\n", id="SIGINT-yields", marks=pytest.mark.matrix),
        pytest.param(*SIGTERM, "", SWALLOWS, "stop\ntidy\n", id="SIGTERM-swallows it", marks=pytest.mark.matrix),
        pytest.param(*SIGINT, SLEEPER, YIELDS, "stop\n", id="SIGINT-leaves a thread", marks=pytest.mark.matrix),
    ],
)
def test_an_interrupt_ends_a_stubborn_process(
    number: signal.Signals, end: tuple[int, str], sleeper: str, work: str, said: str
) -> None:
    program = STUBBORN.format(sleeper=sleeper, work=work)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == end
    assert [word for word in out.split() if word != "begun"] == said.split()


def test_an_interrupt_stops_the_work_but_not_a_calling_program() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stopped = threading.Event()
    with pytest.raises(KeyboardInterrupt) as found, interruptible(stopped.set, pytest.fail):
        signal.raise_signal(signal.SIGTERM)
    assert type(found.value) is Terminated
    assert stopped.wait(10)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_wrapped_interrupt_is_raised_as_an_interrupt() -> None:
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
