"""Python programs in processes that share one import of TensorFlow and Beam, which otherwise cost each of them 4 s and 2 s of CPU.

multiprocessing's fork server imports them once in a test process, and forks before anything of them runs. A test of how an
interpreter starts or ends, or of what it prints as it loads, starts a real one by subprocess.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.processes import ROOT

if TYPE_CHECKING:
    from typing import Self

# Processes of it have imported both.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.helpers.quiet_tensorflow", "tests.helpers.quiet_beam"])


class Forked:
    """A running program: like a Popen, but its output goes to files, so that nobody has to read along.

    Leaving its block kills the program and deletes the files.

    Attributes:
        args: the words of the program.
    """

    def __init__(
        self, *args: str, environment: Mapping[str, str] = {}, folder: Path = ROOT, leads_group: bool = False
    ) -> None:
        """Start a program.

        Args:
            args: what follows `python` on a command line: -m MODULE, -c CODE or FILE, and arguments.
            environment: variables that are added to those of this process.
            folder: its working directory.
            leads_group: whether it is in a new session, so that its pid names its process group.
        """
        self.args = args
        self._files = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._files.name, name) for name in ("out", "err"))
        variables = {**os.environ, **environment}
        self._process = CONTEXT.Process(
            target=_run, args=(args, variables, folder, self._out, self._err, leads_group), daemon=True
        )
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._files.cleanup()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What it has written to stdout so far."""
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    @property
    def output(self) -> str:
        """Both."""
        return self.stdout + self.stderr

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait_for(self, text: str, seconds: float = 90) -> None:
        """Wait until stdout or stderr has a text."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            assert self.returncode is None, self.output
            time.sleep(0.02)

    def wait(self, seconds: float = 90) -> int:
        """Return the exit code once it ends."""
        self._process.join(seconds)
        if self.returncode is None:
            self.kill()
            raise AssertionError(f"{self.args} did not end in {seconds:g} s:\n{self.output}")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
        self._process.join()


def run(
    *args: str, environment: Mapping[str, str] = {}, folder: Path = ROOT, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; see Forked."""
    with Forked(*args, environment=environment, folder=folder) as process:
        return subprocess.CompletedProcess(args, process.wait(seconds), process.stdout, process.stderr)


def _run(
    args: tuple[str, ...], variables: dict[str, str], folder: Path, out: Path, err: Path, leads_group: bool
) -> None:
    """Do what an interpreter does with a command line, in the forked process."""
    if leads_group:
        os.setsid()
    for descriptor, target in ((1, out), (2, err)):
        with target.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.path.insert(0, str(Path(args[0]).parent) if args[0].endswith(".py") else str(folder))
    try:
        match args:
            case ("-m", module, *words):
                sys.argv = [module, *words]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ("-c", code, *words):
                sys.argv = ["-c", *words]
                exec(code, {"__name__": "__main__"})
            case (path, *words):
                sys.argv = [path, *words]
                runpy.run_path(path, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
