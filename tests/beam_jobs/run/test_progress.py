"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.helpers.pictures import make_pictures


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "in", 60)


def on_a_terminal(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a run writes to stderr where that is a terminal."""
    master, slave = pty.openpty()
    # tqdm draws nothing on one of no size.
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        # Linux ends a terminal that nobody holds open any more with an error.
        try:
            while part := os.read(master, 4096):
                parts.append(part)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w") as stderr, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            assert sys.stderr.isatty()
            run(argv)
    finally:
        reader.join()
        os.close(master)
    return b"".join(parts).decode()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bar_counts_what_all_workers_have_done(
    source: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--input", str(source), "--output", str(tmp_path / "out"), "--num-shards=8", f"--workers={workers}"]
    shown = on_a_terminal(argv, monkeypatch)
    assert "planning" in shown
    assert "converting: 100%" in shown
    counts = [int(count) for count in re.findall(r"(\d+) records", shown)]
    assert counts == sorted(counts)
    assert counts[-1] == 60


def test_without_a_terminal_there_is_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("beam_jobs.run.progress.tqdm", None)
    assert not sys.stderr.isatty()
    run(["--input", str(source), "--output", str(tmp_path / "out")])
    assert capfd.readouterr().err == ""
