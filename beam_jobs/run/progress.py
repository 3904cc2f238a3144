"""A progress bar for local runs, whose workers are threads or processes of this machine.

Each worker keeps a small file in a temporary folder, which it rewrites a few times a second at most:

    8   records done, int64 little-endian
    8   bytes read, int64 little-endian

and another one of what it has listed. The plan leaves the totals there in a file of the same form. The process that started the run
adds the files up. Jobs of other runners show Beam's counters instead: records, bytes_read, shards_written.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from apache_beam.runners.runner import PipelineResult
from tqdm import tqdm

from beam_jobs.run.job import job_counts
from tpudata.console.tables import bytes_text, count_text

_COUNTS = struct.Struct("<qq")
_TOTAL, _LISTED = "total", "listed"
_EVERY_SECONDS = 0.2
# An engine is asked for its counters so often: for a bar, and for lines of a log.
_BAR_SECONDS, _LINE_SECONDS = 2.0, 60.0


class ProgressReport:
    """Address for workers' reports; pickled to them.

    Args:
        folder: folder of the reports, or None where nobody looks.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._records = self._bytes = 0
        self._listed = self._listed_bytes = 0
        self._written = self._listing_written = 0.0

    def total(self, records: int, size: int) -> None:
        """Report the planned numbers of records and bytes."""
        self._write(_TOTAL, records, size)

    def list(self, inputs: int, size: int) -> None:
        """Report that more inputs of `size` bytes in all are listed."""
        self._listed += inputs
        self._listed_bytes += size
        if self._folder is not None and time.monotonic() - self._listing_written > _EVERY_SECONDS:
            self.flush_list()

    def flush_list(self) -> None:
        """Report the listed inputs now, without waiting for the next interval."""
        if self._listed:
            self._write(f"{_LISTED}-{os.getpid()}-{id(self)}", self._listed, self._listed_bytes)
        self._listing_written = time.monotonic()

    def add(self, size: int) -> None:
        """Report one more record of `size` bytes."""
        self._records += 1
        self._bytes += size
        if self._folder is not None and time.monotonic() - self._written > _EVERY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Report now."""
        self._write(f"{os.getpid()}-{id(self)}", self._records, self._bytes)
        self._written = time.monotonic()

    def _write(self, name: str, records: int, size: int) -> None:
        if self._folder is None:
            return
        # The folder goes when the bar does, which may be while a worker is still ending.
        with contextlib.suppress(OSError):
            Path(self._folder, name).write_bytes(_COUNTS.pack(records, size))


@contextlib.contextmanager
def progress_bar(shown: bool, delay: float = 0) -> Iterator[ProgressReport]:
    """Show a bar on stderr while the context lasts: with the inputs that are listed, then with records, MB/s and the time left.

    Args:
        shown: whether to show one; without it, reports go nowhere.
        delay: seconds before it is shown.
    """
    if not shown:
        yield ProgressReport(None)
        return
    with tempfile.TemporaryDirectory(prefix="tpudata-progress-") as folder:
        stop = threading.Event()
        thread = threading.Thread(target=_watch, args=(Path(folder), stop, delay), daemon=True)
        thread.start()
        report = ProgressReport(folder)
        try:
            yield report
        finally:
            report.flush_list()
            stop.set()
            thread.join()


def _watch(folder: Path, stop: threading.Event, delay: float) -> None:
    """Draw a bar of the counts that workers write into files of a folder, until `stop` is set."""
    # This loop sets the pace, so tqdm draws at every call, including the last counts.
    options: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False, "mininterval": 0, "miniters": 0}
    with tqdm(total=None, desc="planning", delay=delay, **options) as bar:
        has_ended = False
        while not has_ended:
            has_ended = stop.wait(_EVERY_SECONDS)
            records = size = inputs = listed = 0
            for path in folder.iterdir():
                data = path.read_bytes()
                if len(data) < _COUNTS.size:
                    continue
                counts = _COUNTS.unpack(data)
                if path.name == _TOTAL:
                    bar.total = counts[1]
                    bar.desc = "converting"
                elif path.name.startswith(_LISTED):
                    inputs, listed = inputs + counts[0], listed + counts[1]
                else:
                    records, size = records + counts[0], size + counts[1]
            is_planned = bar.total is not None
            bar.set_postfix_str(
                count_text(records, "record") if is_planned else count_text(inputs, "input"), refresh=False
            )
            bar.update((size if is_planned else listed) - bar.n)


@contextlib.contextmanager
def job_progress(
    result: PipelineResult,
    draws_bar: bool,
    report: Callable[[str], None] | None = None,
    every_seconds: float | None = None,
) -> Iterator[None]:
    """Show a job's counters while the context lasts, in a bar on stderr or in lines.

    Args:
        result: result of submitting it.
        draws_bar: whether to draw a bar.
        report: without a bar, gets the lines; None shows none.
        every_seconds: seconds between two looks at the counts; None for 2 with a bar, and 60 for lines.
    """
    if not (draws_bar or report):
        yield
        return
    stop = threading.Event()
    watch = _watch_job_in_a_bar if draws_bar else _watch_job_in_lines
    seconds = every_seconds or (_BAR_SECONDS if draws_bar else _LINE_SECONDS)
    thread = threading.Thread(target=watch, args=(result, stop, seconds, report), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # Wait, so that nothing is drawn after the caller's next output; at most 1 s, since the engine may not answer.
        thread.join(1)


def _watch_job_in_a_bar(result: PipelineResult, stop: threading.Event, seconds: float, report: object) -> None:
    """Draw a bar of a job's counters until `stop` is set."""
    del report
    with tqdm(total=None, unit="B", unit_scale=True, desc="converting", leave=False, mininterval=0, miniters=0) as bar:
        while not stop.wait(seconds):
            with contextlib.suppress(Exception):
                counts = job_counts(result)
                bar.set_postfix_str(_counts_text(counts["records"], counts["shards_written"]), refresh=False)
                bar.update(counts["bytes_read"] - bar.n)


def _watch_job_in_lines(
    result: PipelineResult, stop: threading.Event, seconds: float, report: Callable[[str], None]
) -> None:
    """Report a line of a job's counters whenever they change, until `stop` is set."""
    before = ""
    while not stop.wait(seconds):
        with contextlib.suppress(Exception):
            counts = job_counts(result)
            line = (
                f"{_counts_text(counts['records'], counts['shards_written'])}, {bytes_text(counts['bytes_read'])} read"
            )
            if line != before and counts:
                report(line)
            before = line


def _counts_text(records: int, shards: int) -> str:
    return f"{count_text(records, 'record')}, {count_text(shards, 'shard')}"
