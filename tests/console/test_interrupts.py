from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.datasets import write_images

ROOT = Path(__file__).parents[2]
# Sends Ctrl-C to its own process when a certain module is imported, or when the interpreter exits.
HOOK = """
import atexit, os, signal, sys

place = os.environ["INTERRUPT_AT"]

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == place:
            signal.raise_signal(signal.SIGINT)

if place == "exit":
    atexit.register(signal.raise_signal, signal.SIGINT)
else:
    sys.meta_path.insert(0, Finder)
"""
TPUDATA = ("-c", "import sys; from tpudata.cli import main; sys.exit(main())")


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    images = [np.zeros((28, 28, 1), np.uint8)] * 3
    write_images(str(folder / "data"), {"train": images}, {"train": [0, 1, 2]}, shape=(28, 28, 1))
    return folder


def interrupted(hook: Path, place: str, *words: str) -> tuple[int, str, str]:
    """Return the exit code and the output of a Python that gets Ctrl-C at a place."""
    environment = {**os.environ, "INTERRUPT_AT": place, "PYTHONPATH": os.pathsep.join((str(hook), str(ROOT)))}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("tpudata.console.process", (*TPUDATA, "--help")),
        ("tpudata.console.flags", (*TPUDATA, "inspect", "/none")),
        ("numpy", (*TPUDATA, "inspect", "/none")),
        ("apache_beam", (*TPUDATA, "convert", "images", "--input=/none", "--output=/none")),
        ("beam_jobs.options", (*TPUDATA, "convert", "text", "--input=/none", "--output=/none")),
        ("dataclasses", ("-m", "beam_jobs.images", "--help")),
        ("apache_beam", ("-m", "beam_jobs.text", "--help")),
        ("beam_jobs.conversion", ("-m", "beam_jobs.reshard", "--help")),
        ("tpudata.train.command", ("-m", "tpudata.train", "--help")),
        (
            "tensorflow",
            (
                "-m",
                "tpudata.train",
                "--data=DATA",
                "--mode=train",
                "--train-steps=1",
                "--model=mnist_cnn",
                "--model-dir=DATA/model",
            ),
        ),
        ("tensorflow", (*TPUDATA, "bench", "--batch-size=3", "DATA")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_an_interrupt_while_a_command_loads_prints_no_traceback(hook: Path, place: str, words: tuple[str, ...]) -> None:
    code, output, errors = interrupted(hook, place, *(word.replace("DATA", str(hook / "data")) for word in words))
    assert (code, output) == (130, "")
    # Silent if the output of a library that loads is held back.
    assert errors in ("", "tpudata: interrupted\n")


def test_an_interrupt_at_the_exit_prints_one_line(hook: Path) -> None:
    code, output, errors = interrupted(hook, "exit", *TPUDATA, "--version")
    assert (code, errors) == (130, "tpudata: interrupted\n")
    assert output.startswith("tpudata ")


WORKS = """
import os, signal, sys, time
from tpudata.console.interrupts import end_on_interrupt
end_on_interrupt()
from tpudata.console.process import run_command

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def command(argv):
    {body}
    return 0

sys.exit(run_command(command))
"""
INTERRUPT = "signal.raise_signal(signal.SIGINT)"


@pytest.mark.parametrize(
    "body",
    [
        # A second one while the command cleans up, or swallows the first.
        f"""
    try: {INTERRUPT}
    finally: {INTERRUPT}; time.sleep(600)
""",
        f"""
    try: {INTERRUPT}
    except KeyboardInterrupt: {INTERRUPT}; time.sleep(600)
""",
        # Wrapped by a library, as an error of ours too.
        f"""
    try: {INTERRUPT}
    except KeyboardInterrupt: raise SystemError("returned a result with an exception set")
""",
        f"""
    from tpudata.errors import DatasetError
    try: {INTERRUPT}
    except KeyboardInterrupt: raise DatasetError("it ended")
""",
        # In a finalizer, which swallows exceptions.
        "Finalized(); time.sleep(600)",
    ],
)
def test_interrupts_of_a_running_command_print_at_most_one_line(body: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKS.format(body=body)], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.returncode == 130
    assert (done.stdout, done.stderr) in (("", ""), ("", "tpudata: interrupted\n"))


def test_commands_keep_the_handler_of_a_calling_program(capsys: pytest.CaptureFixture[str]) -> None:
    from tpudata.cli import main

    def handle(*_: object) -> None:
        pytest.fail("interrupted")

    before = signal.signal(signal.SIGINT, handle)
    try:
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGINT) is handle
    finally:
        signal.signal(signal.SIGINT, before)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_interrupt_stays_ignored() -> None:
    # As in a program started by nohup or a shell's &.
    program = WORKS.format(body=f"{INTERRUPT}; print('done')").replace(
        "from tpudata.console.interrupts",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom tpudata.console.interrupts",
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
