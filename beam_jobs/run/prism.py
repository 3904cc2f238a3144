"""Prism, an engine of Beam: finding or building its binary, and running its server, which ends with this process.

Beam's PrismRunner downloads a binary. Here one is looked for on this machine first, and built with Go otherwise: module proxies are
reached from more places than release pages.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, PrismRunnerOptions, StandardOptions

from beam_jobs.run import supervised
from tpudata.console.child_processes import make_child_environment
from tpudata.console.lifeline import Lifeline
from tpudata.errors import TpudataError, UsageError

PRISM = "PrismRunner"
_VERSION = f"v{apache_beam.__version__}"
_MODULE = f"github.com/apache/beam/sdks/v2/go/cmd/prism@{_VERSION}"
_RELEASE = f"https://github.com/apache/beam/releases/tag/{_VERSION}"
# Command for the user; its first run takes minutes.
_INSTALL = f"go install {_MODULE}"
_START_SECONDS = 30.0
_log = logging.getLogger("tpudata")


def start_prism(options: PipelineOptions) -> None:
    """Point the options to a Prism server, started if this process has none for this binary.

    Do nothing if they name another runner or a server, or if Beam fetches the binary itself.

    The server serves all jobs of this process, and ends with the process, not with a job: workers here fail when their server
    ends.

    Args:
        options: options of one pipeline, which get the server's address.

    Raises:
        UsageError: `--prism_location` is not a program, or Prism is not installed and cannot be built here.
        TpudataError: the server does not start.
    """
    portable = options.view_as(PortableOptions)
    location = options.view_as(PrismRunnerOptions).prism_location
    if options.view_as(StandardOptions).runner != PRISM or portable.job_endpoint or _is_handled_by_beam(location):
        return
    binary = find_prism(location)
    with _starting:
        server = _servers.get(binary)
        if server is None or server.process.poll() is not None:
            server = _servers[binary] = _Server.start(binary)
    portable.job_endpoint = f"localhost:{server.port}"


@dataclasses.dataclass(frozen=True)
class _Server:
    """A server of this process.

    Attributes:
        process: process that supervises the server.
        port: port on which it serves.
        lifeline: lifeline that ends it with this process.
    """

    process: subprocess.Popen[bytes]
    port: int
    lifeline: Lifeline

    @classmethod
    def start(cls, binary: Path) -> _Server:
        """Start a server, and wait until it serves; TpudataError if it does not start."""
        # Find a free port, which the server takes once this socket is closed.
        with socket.create_server(("127.0.0.1", 0)) as port_finder:
            port = int(port_finder.getsockname()[1])
        lifeline = Lifeline()
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", supervised.__name__, str(lifeline.reader)),
                    *(str(binary), f"--job_port={port}", "--serve_http=false", "--log_level=error", "--log_kind=text"),
                ],
                env=make_child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lifeline.reader],
            )
            if _wait_until_serving(port, process):
                return cls(process, port, lifeline)
            # End the server if it still runs.
            lifeline.close()
            process.wait()
            log.seek(0)
            last_line = _find_last_line(log.read().decode(errors="replace"))
        raise TpudataError(
            f"--runner={PRISM}: {binary} did not start ({last_line}). Pass --prism_location=FILE of another binary."
        )


# Servers of this process, by binary.
_servers: dict[Path, _Server] = {}
_starting = threading.Lock()


def find_prism(location: str | None = None) -> Path:
    """Return the path of a Prism binary; build it if it is missing.

    Args:
        location: value of `--prism_location`; if it is None or empty, the user's caches of tpudata and of
            Beam and the PATH are searched.

    Raises:
        UsageError: `location` is not a program, or Prism is not installed and cannot be built here.
    """
    if location:
        if not os.access(location, os.X_OK):
            raise UsageError(
                f"--prism_location {location}: it is not a program (expected Prism's binary). Try chmod +x."
            )
        return Path(location).absolute()
    cached_path = _find_cache_folder() / f"prism-{_VERSION}"
    cached_by_beam = sorted(Path.home().glob(f".apache_beam/cache/prism/bin/apache_beam-{_VERSION}-prism-*"))
    on_path = shutil.which("prism")
    # Other programs are also called `prism`, so the PATH comes last. Beam's cache may also have the zip archive of a download.
    for path in (cached_path, *cached_by_beam, *([Path(on_path)] if on_path else [])):
        if os.access(path, os.X_OK) and not zipfile.is_zipfile(path):
            return path
    _build(cached_path)
    return cached_path


def _build(path: Path) -> None:
    """Build Prism with Go into a file at `path`; UsageError if Go is not installed, or the build fails."""
    alternatives = f"or pass --prism_location=FILE, or --prism_location={_RELEASE} to download it"
    go = shutil.which("go")
    if go is None:
        raise UsageError(
            f"--runner={PRISM}: there is no prism on the PATH or in {path.parent}, and no Go to build it. Install Go"
            f" (https://go.dev/doc/install) and run `{_INSTALL}`, {alternatives}."
        )
    _log.warning("Building Prism %s with Go, once: this takes some minutes.", _VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        completed = subprocess.run(
            [go, "install", _MODULE],
            env={**os.environ, "GOBIN": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if completed.returncode != 0:
            raise UsageError(
                f"--runner={PRISM}: `{_INSTALL}` failed ({_find_last_line(completed.stderr)}). Repair that, {alternatives}."
            )
        # The binary gets its name only once it is complete.
        Path(folder, "prism").replace(path)


def _find_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpudata"


def _is_handled_by_beam(location: str | None) -> bool:
    """Return whether a location is a URL or a zip archive, which Beam downloads and unpacks."""
    return bool(location) and ("://" in str(location) or zipfile.is_zipfile(str(location)))


def _find_last_line(text: str) -> str:
    """Return the last line of the output of a program; "without a message" if there is none."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "without a message"


def _wait_until_serving(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a port accepts connections; return False if the process ends first, or after a time limit."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.02)
    return False
