"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.images import run
from beam_jobs.references.reference import Reference
from beam_jobs.run.progress import progress_bar
from beam_jobs.sources.folders.class_folders import ClassFolders
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


def test_planning_bar_counts_listed_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> None:
        with progress_bar(True) as progress:
            progress.list(3, 500)
            progress.list(4, 700)

    shown = on_a_terminal(plan, monkeypatch)
    assert re.search(r"planning: 1\.20kB .* 7 inputs", shown)


def test_a_dry_run_of_less_than_two_seconds_shows_no_bar(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--input", str(source), "--output", str(tmp_path / "out"), "--dry-run"]
    assert on_a_terminal(lambda: run(argv), monkeypatch) == ""


def test_a_dry_run_of_more_than_two_seconds_shows_a_bar(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_folder = ClassFolders.references

    def list_slowly(source: ClassFolders, *unit: Any) -> Iterator[Reference]:
        yield from list_folder(source, *unit)
        time.sleep(1.5)

    # Two class folders.
    monkeypatch.setattr(ClassFolders, "references", list_slowly)
    argv = ["--input", str(source), "--output", str(tmp_path / "out"), "--dry-run"]
    assert re.search(r"planning: .* 60 inputs", on_a_terminal(lambda: run(argv), monkeypatch))


def test_shows_no_bar_without_a_terminal(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("beam_jobs.run.progress.tqdm", None)
    assert not sys.stderr.isatty()
    run(["--input", str(source), "--output", str(tmp_path / "out")])
    assert capfd.readouterr().err == ""
