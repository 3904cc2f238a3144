from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tpudata.errors import DatasetError, UsageError
from tpudata.process import run_command


def _raises(error: BaseException) -> int:
    def command(argv: Sequence[str]) -> int:
        raise error

    return run_command(command, [])


def test_the_code_of_the_command_is_returned() -> None:
    assert run_command(len, ["a", "b"]) == 2


def test_arguments_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prog", "a"])
    assert run_command(len) == 1


@pytest.mark.parametrize(("error", "code"), [(DatasetError("no manifest"), 1), (UsageError("no flag"), 2)])
def test_our_errors_are_words_on_stderr(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _raises(error) == code
    assert capsys.readouterr() == ("", f"tpudata: error: {error}\n")


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        _raises(ZeroDivisionError())


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raises(KeyboardInterrupt()) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (None, 0), (3, 3), ("words", 1)])
def test_exits(code: int | str | None, expected: int) -> None:
    assert _raises(SystemExit(code)) == expected


def test_a_closed_pipe_is_quiet() -> None:
    program = (
        "import sys; from tpudata.process import run_command\n"
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


def test_names_beyond_the_terminals_encoding_are_escaped() -> None:
    program = "import sys; from tpudata.process import run_command; sys.exit(run_command(lambda argv: print('na\\xefve') or 0))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "na\\xefve\n")
