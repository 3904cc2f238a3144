"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import shutil
import struct
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.helpers.pictures import make_pictures


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures of two classes."""
    folder = make_pictures(tmp_path_factory.mktemp("pictures") / "in", 90)
    shutil.rmtree(folder / "eel")
    return folder


def on_a_terminal(convert: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a call writes to stderr where that is a terminal."""
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
            convert()
    finally:
        reader.join()
        os.close(master)
    return b"".join(parts).decode()


@pytest.mark.parametrize("workers", [1, 1000])
def test_bar_counts_records_of_all_workers(
    source: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--split=train=1", "--num-shards=2", f"--workers={workers}"]
    argv = ["--input", str(source), "--output", str(tmp_path / "out"), *flags]
    shown = on_a_terminal(lambda: run(argv), monkeypatch)
    assert "planning" in shown
    assert "converting: 100%" in shown
    counts = [int(count) for count in re.findall(r"(\d+) records", shown)]
    assert counts == sorted(counts)
    assert counts[-1] == 60
    # Two class folders are listed, then two shards are written.
    started = ["--workers 1000: 2 are started, as many as the work has parts."]
    assert caplog.messages == (started if workers > 1 else [])


@pytest.mark.parametrize(("seconds", "bar"), [(0, r""), (3, r".*planning: ([\d.]+)kB .* 60 inputs.*")])
def test_only_a_dry_run_of_more_than_two_seconds_shows_a_bar(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, bar: str
) -> None:
    # The clock of tqdm, which goes on by so many seconds each time that tqdm looks at it.
    monkeypatch.setattr("tqdm.std.time", itertools.count(step=seconds).__next__)
    argv = ["--input", str(source), "--output", str(tmp_path / "out"), "--dry-run"]
    shown = re.fullmatch(bar, on_a_terminal(lambda: run(argv), monkeypatch), re.DOTALL)
    assert shown
    if seconds:
        size = sum(path.stat().st_size for path in source.rglob("*.*"))
        assert float(shown[1]) == pytest.approx(size / 1000, rel=0.01)


def test_shows_no_bar_without_a_terminal(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("beam_jobs.run.progress.tqdm", None)
    assert not sys.stderr.isatty()
    run(["--input", str(source), "--output", str(tmp_path / "out")])
    assert capfd.readouterr().err == ""
