"""Errors of the machine: too little memory, failing disks.

Tests raise them in a command made for it, at the places where machines do.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from tests.beam_jobs.images import chunk
from tests.helpers import forked
from tpudata.cli import main
from tpudata.console.process import run_command

# Runs a command with a limit of that many bytes of memory beyond its own process.
LIMITED = """
import resource, sys
from pathlib import Path
from tpudata.cli import main
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.argv[1:] = sys.argv[2:]
sys.exit(main())
"""
WORDS = "Use a machine with more memory; fewer --workers, or a smaller --batch-size, take less."


def raised(error: BaseException, wrapped_in: Exception | None = None) -> int:
    def command(argv: Sequence[str]) -> int:
        del argv
        if wrapped_in is not None:
            raise wrapped_in from error
        raise error

    return run_command(command, [])


def of_numpy() -> BaseException:
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (of_numpy(), "Unable to allocate 1.00 EiB"),
        (pyarrow.lib.ArrowMemoryError("malloc of size 64 failed"), "malloc of size 64 failed"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("libx.so.2: failed to map segment from shared object"), "failed to map segment"),
    ],
)
def test_reports_lack_of_memory_in_one_line(
    error: BaseException, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrapped_in in (None, ValueError("a step failed")):
        assert raised(error, wrapped_in) == 1
        said = capsys.readouterr().err
        assert said.startswith("tpudata: error: memory ran out (")
        assert reason in said
        assert said.endswith(f"). {WORDS}\n")
        assert said.count("\n") == 1


def test_reports_a_failing_disk_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert raised(OSError(errno.EIO, os.strerror(errno.EIO), "/data/x")) == 1
    assert capsys.readouterr().err == (
        "tpudata: error: /data/x could not be used: Input/output error. The disk or the connection to it fails: see the"
        " system's log (`dmesg`).\n"
    )


def test_reports_a_deleted_working_directory_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["convert", "text", "--input=texts", "--output=out"]) == 1
    assert capsys.readouterr().err.startswith("tpudata: error: the working directory does not exist any more.")
    # Complete paths need none.
    (tmp_path / "a.txt").write_text("a line\n")
    assert main(["convert", "text", f"--input={tmp_path / 'a.txt'}", f"--output={tmp_path / 'out'}"]) == 0


def test_an_image_too_large_for_memory_is_not_a_bad_record(tmp_path: Path) -> None:
    # 144 million pixels of one bit, of which grey and alpha take 1.2 GB, compressed to 18 kB.
    side = 12_000
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + side // 8) * side))
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"tRNS", b"\0\0")
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )
    (tmp_path / "in" / "cat").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "in" / "cat" / f"{name}.png").write_bytes(data)
    flags = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--on-bad-record=skip"]
    done = forked.run("-c", LIMITED, str(400 << 20), "convert", "images", *flags, "--num-shards=2")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("tpudata: error: memory ran out (MemoryError; ulimit -v allows ")
    assert line.endswith(WORDS)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("kind", ["text", "images"])
def test_lack_of_memory_in_arrow_is_not_reported_as_damage(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"text": ["a", "b"]} if kind == "text" else {"image": [{"bytes": b"x", "path": None}], "label": [1]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")

    def fail(*_: object, **__: object) -> None:
        raise pyarrow.lib.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", fail)
    assert main(["convert", kind, f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/out"]) == 1
    assert "tpudata: error: memory ran out (ArrowMemoryError: malloc of size 64 failed" in capsys.readouterr().err
