"""Progress of runs: a bar for the local runner, and a bar or lines for the jobs of other runners.

The workers of the local runner are threads or processes of this machine. Each keeps a small file in a temporary folder, which it
rewrites a few times a second at most:

    8   records done, int64 little-endian
    8   bytes read, int64 little-endian

A worker that lists inputs keeps a second file of the same form, with the number of listed inputs and their bytes. The plan writes
the planned totals into one more file. The process that started the run adds the files up. Jobs of other runners show Beam's
counters instead: records, bytes_read, shards_written.
"""

from __future__ import annotations

import contextlib
import functools
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

from beam_jobs.run.job import read_job_counts
from tpudata.console.tables import bytes_text, count_text

_COUNTS = struct.Struct("<qq")
_TOTAL, _LISTED = "total", "listed"
_REDRAW_SECONDS = 0.2
# Intervals at which a runner is asked for its counters: for a bar, and for lines of a log.
_BAR_SECONDS, _LINE_SECONDS = 2.0, 60.0


class ProgressReport:
    """Writer of a worker's counts; pickled to the workers.

    Args:
        folder: folder of the files of counts; None writes none.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._record_count = self._bytes = 0
        self._listed_count = self._listed_bytes = 0
        self._flush_time = self._listed_flush_time = 0.0

    def set_total(self, record_count: int, size: int) -> None:
        """Report the planned number of records, and their size in bytes."""
        self._write(_TOTAL, record_count, size)

    def add_listed(self, input_count: int, size: int) -> None:
        """Count more listed inputs, of `size` bytes in all; if there is a bar, write the counts at most five times a second."""
        self._listed_count += input_count
        self._listed_bytes += size
        if self._folder is not None and time.monotonic() - self._listed_flush_time > _REDRAW_SECONDS:
            self.flush_listed()

    def flush_listed(self) -> None:
        """Report the listed inputs now, without waiting for the next interval."""
        # Most processes list nothing, and need no file.
        if self._listed_count:
            self._write(f"{_LISTED}-{os.getpid()}-{id(self)}", self._listed_count, self._listed_bytes)
        self._listed_flush_time = time.monotonic()

    def add_record(self, size: int) -> None:
        """Count one more record, of `size` bytes; if there is a bar, write the counts at most five times a second."""
        self._record_count += 1
        self._bytes += size
        if self._folder is not None and time.monotonic() - self._flush_time > _REDRAW_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Report the records now, without waiting for the next interval."""
        self._write(f"{os.getpid()}-{id(self)}", self._record_count, self._bytes)
        self._flush_time = time.monotonic()

    def _write(self, name: str, count: int, size: int) -> None:
        """Write counts into a file of the folder, from which the bar reads them; do nothing if no bar is drawn."""
        if self._folder is None:
            return
        # The folder is removed with the bar, while a worker may still be ending.
        with contextlib.suppress(OSError):
            Path(self._folder, name).write_bytes(_COUNTS.pack(count, size))


@contextlib.contextmanager
def progress_bar(is_shown: bool, delay: float = 0) -> Iterator[ProgressReport]:
    """Show a bar on stderr while the context lasts: with the inputs that are listed, then with records, MB/s and the time left.

    Args:
        is_shown: whether to show a bar; if not, the yielded report writes nothing.
        delay: seconds before the bar is shown.
    """
    if not is_shown:
        yield ProgressReport(folder=None)
        return
    with tempfile.TemporaryDirectory(prefix="tpudata-progress-") as folder:
        stop = threading.Event()
        thread = threading.Thread(target=_watch, args=(Path(folder), stop, delay), daemon=True)
        thread.start()
        report = ProgressReport(folder)
        try:
            yield report
        finally:
            report.flush_listed()
            stop.set()
            thread.join()


def _watch(folder: Path, stop: threading.Event, delay: float) -> None:
    """Draw a bar of the counts that workers write into files of a folder, until `stop` is set."""
    # This loop sets the pace, so tqdm draws at every call, including the last counts.
    options: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False, "mininterval": 0, "miniters": 0}
    with tqdm(total=None, desc="planning", delay=delay, **options) as bar:
        has_ended = False
        while not has_ended:
            has_ended = stop.wait(_REDRAW_SECONDS)
            record_count = record_bytes = input_count = input_bytes = 0
            for path in folder.iterdir():
                data = path.read_bytes()
                # A worker may be writing the file right now.
                if len(data) < _COUNTS.size:
                    continue
                count, size = _COUNTS.unpack(data)
                if path.name == _TOTAL:
                    bar.total = size
                    bar.desc = "converting"
                elif path.name.startswith(_LISTED):
                    input_count, input_bytes = input_count + count, input_bytes + size
                else:
                    record_count, record_bytes = record_count + count, record_bytes + size
            is_planned = bar.total is not None
            bar.set_postfix_str(
                count_text(record_count, "record") if is_planned else count_text(input_count, "input"), refresh=False
            )
            bar.update((record_bytes if is_planned else input_bytes) - bar.n)


@contextlib.contextmanager
def job_progress(
    result: PipelineResult,
    draws_bar: bool,
    report: Callable[[str], None] | None = None,
    poll_seconds: float | None = None,
) -> Iterator[None]:
    """Show a job's counters while the context lasts, in a bar on stderr or in lines.

    Args:
        result: result of submitting the job.
        draws_bar: whether to draw a bar.
        report: without a bar, called with the lines; None shows none.
        poll_seconds: seconds between two readings of the counters; None for 2 with a bar, and 60 for lines.
    """
    stop = threading.Event()
    if draws_bar:
        watch = functools.partial(_draw_job_bar, result, stop, poll_seconds or _BAR_SECONDS)
    elif report is not None:
        watch = functools.partial(_report_job_lines, result, stop, poll_seconds or _LINE_SECONDS, report)
    else:
        yield
        return
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # Wait, so that nothing is drawn after the caller's next output; at most 1 s, since the runner may not answer.
        thread.join(timeout=1)


def _draw_job_bar(result: PipelineResult, stop: threading.Event, poll_seconds: float) -> None:
    """Draw a bar of a job's counters until `stop` is set."""
    # This loop sets the pace, so tqdm draws at every call.
    with tqdm(total=None, unit="B", unit_scale=True, desc="converting", leave=False, mininterval=0, miniters=0) as bar:
        while not stop.wait(poll_seconds):
            # A runner that does not answer leaves the bar unchanged.
            with contextlib.suppress(Exception):
                counts = read_job_counts(result)
                bar.set_postfix_str(_format_counts(counts["records"], counts["shards_written"]), refresh=False)
                bar.update(counts["bytes_read"] - bar.n)


def _report_job_lines(
    result: PipelineResult, stop: threading.Event, poll_seconds: float, report: Callable[[str], None]
) -> None:
    """Report a line of a job's counters whenever they change, until `stop` is set."""
    last_line = ""
    while not stop.wait(poll_seconds):
        # A runner that does not answer gives no line.
        with contextlib.suppress(Exception):
            counts = read_job_counts(result)
            line = f"{_format_counts(counts['records'], counts['shards_written'])}, {bytes_text(counts['bytes_read'])} read"
            # `counts` is empty until a step has counted something.
            if line != last_line and counts:
                report(line)
            last_line = line


def _format_counts(record_count: int, shard_count: int) -> str:
    return f"{count_text(record_count, 'record')}, {count_text(shard_count, 'shard')}"
