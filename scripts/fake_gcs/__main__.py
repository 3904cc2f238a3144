"""The command of `scripts/gcs_emulator`: serves until it is interrupted, and prints the variables for its clients."""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.fake_gcs import FakeGcs, environment
from scripts.fake_gcs.api import MAX_LISTED


def main() -> int:
    """Read the arguments and serve; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/gcs_emulator",
        description="A small Google Cloud Storage on this machine, in memory; what is stored is gone when it ends. It prints the"
        " environment variables that lead tpudata, Beam and TensorFlow to it.",
    )
    parser.add_argument("--port", type=port, default=0, help="port of loopback (default: any that is free)")
    parser.add_argument(
        "--bucket",
        action="append",
        metavar="NAME[=FOLDER]",
        help="a bucket, with the files of a folder (default: data)",
    )
    parser.add_argument("--latency", type=amount, default=0.0, metavar="MS", help="milliseconds before each answer")
    parser.add_argument("--bandwidth", type=amount, metavar="MB", help="MB/s of each request (default: no limit)")
    parser.add_argument("--environment", type=Path, metavar="FILE", help="write the variables there as well")
    flags = parser.parse_args()
    # The program that started this one, or a terminal that is closed, sends these.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gcs-emulator-") as folder,
            open_store(flags.port) as store,
            ignore_signals_at_exit(),
        ):
            for bucket in flags.bucket or ["data"]:
                name, _, files = bucket.partition("=")
                fill_bucket(store, name, files)
            store.latency = flags.latency / 1000
            store.bandwidth = None if flags.bandwidth is None else flags.bandwidth * 1e6
            variables = environment(store, Path(folder))
            lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
            names = ", ".join(f"gs://{name}" for name in store.buckets)
            print(
                f"# {names} at {store.url}; Ctrl-C ends it. Paste this into the shell that is to use it:\n{lines}",
                end="",
            )
            sys.stdout.flush()
            if flags.environment:
                temporary = flags.environment.with_name(f".{flags.environment.name}")
                temporary.write_text(lines)
                temporary.replace(flags.environment)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"gcs_emulator: {error}", file=sys.stderr)
        return 1
    return 0


def port(text: str) -> int:
    """Parse the number of a port, as an argparse `type`."""
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise ValueError(text)
    return number


def amount(text: str) -> float:
    """Parse a finite number of 0 or more, as an argparse `type`."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def open_store(port: int) -> FakeGcs:
    """Return a store on a port, 0 for any that is free; OSError if the port cannot be used."""
    try:
        return FakeGcs(MAX_LISTED, port)
    except OSError as error:
        raise OSError(f"port {port} of 127.0.0.1: {error.strerror}. Omit --port for a free one.") from error


@contextlib.contextmanager
def ignore_signals_at_exit() -> Iterator[None]:
    """Ignore signals after the body, so that a second Ctrl-C does not interrupt the removal of temporary files."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def fill_bucket(store: FakeGcs, name: str, folder: str) -> None:
    """Make a bucket, and store the files of a folder in it; an empty `folder` stands for none.

    Raises:
        OSError: the name is invalid, or the folder does not exist.
    """
    if not name or "/" in name:
        raise OSError(f"--bucket {name!r}: it is NAME or NAME=FOLDER, and no gs:// or / is in a bucket's name")
    store.bucket(name)
    if folder and not Path(folder).is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    for path in sorted(Path(folder).rglob("*")) if folder else ():
        if path.is_file():
            store.put(name, path.relative_to(folder).as_posix(), path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
