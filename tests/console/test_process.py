"""How the process of a command ends: exit codes, standard output and errors.

Tests run commands that end in each way, which real ones do on some machines only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tpudata.console.process import run_command
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


def run_in_shell(program: str, argument: Path, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program with an argument, with a redirection of the shell such as `2>&-`."""
    command = ["sh", "-c", f'"$0" -c "$1" "$2" {redirection}', sys.executable, program, str(argument)]
    return subprocess.run(command, capture_output=True, text=True)


def test_rejects_a_closed_stdout_before_the_command_runs(tmp_path: Path) -> None:
    program = (
        "import sys; from tpudata.console.process import run_command\n"
        "def command(argv):\n    open(argv[0], 'w').close(); print(1); return 0\n"
        "sys.exit(run_command(command))"
    )
    done = run_in_shell(program, tmp_path / "done", ">&-")
    assert done.returncode == 1
    assert done.stderr == "tpudata: error: standard output is closed. Send it to a file or to /dev/null.\n"
    assert not (tmp_path / "done").exists()


def test_a_closed_stderr_becomes_dev_null(tmp_path: Path) -> None:
    program = (
        "import os, sys; from tpudata.console.process import run_command\n"
        "def command(argv):\n"
        "    with open(argv[0], 'w') as file:\n"
        "        os.write(2, b'of a library'); print('of ours', file=sys.stderr); file.write(str(sys.stderr.isatty()))\n"
        "    return 0\n"
        "sys.exit(run_command(command))"
    )
    done = run_in_shell(program, tmp_path / "done", "2>&-")
    assert (done.returncode, done.stdout, (tmp_path / "done").read_text()) == (0, "", "False")


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
