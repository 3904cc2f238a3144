"""Standard error of a command omits tracebacks of Beam's workers and keeps everything else.

Beam prints them only if a worker dies at the right moment, so tests call the filter directly.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.command.quiet_stderr import hide_worker_tracebacks
from tests.beam_jobs.images import encode, picture
from tests.helpers import forked

OF_BEAM = (
    'Traceback (most recent call last):\n  File "/x/apache_beam/runners/worker/sdk_worker.py", line 1\nValueError\n'
)
OF_OTHERS = 'Traceback (most recent call last):\n  File "/x/mine.py", line 1\nValueError\n'


def test_omits_only_tracebacks_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    with hide_worker_tracebacks():
        for text in ("a", OF_BEAM, "b", OF_OTHERS, OF_BEAM):
            print(text, file=sys.stderr)
        sys.stderr.flush()
        assert sys.stderr.encoding == before.encoding
    assert sys.stderr is before
    assert capsys.readouterr().err == f"a\nb\n{OF_OTHERS}\n"


def test_silences_only_threads_of_beam(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    program = "def fail():\n    raise ConnectionError('gone')"
    with hide_worker_tracebacks():
        for file in ("/x/apache_beam/runners/worker/data_plane.py", "/x/mine.py"):
            names: dict[str, Any] = {}
            exec(compile(program, file, "exec"), names)
            thread = threading.Thread(target=names["fail"], name=f"of {file}")
            thread.start()
            thread.join()
    assert threading.excepthook is threading.__excepthook__
    said = capsys.readouterr().err
    assert "Exception in thread of /x/mine.py" in said
    assert "apache_beam" not in said


def test_commands_omit_lines_of_libtiff(tmp_path: Path) -> None:
    damaged = bytearray(encode(picture(), "TIFF", compression="tiff_deflate"))
    damaged[12] ^= 0xFF
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "a.tif").write_bytes(damaged)
    (tmp_path / "in" / "cat" / "b.png").write_bytes(encode(picture(), "PNG"))
    flags = [f"--input={tmp_path}/in", f"--output={tmp_path}/out"]
    done = forked.run("-m", "tpudata", "convert", "images", *flags)
    assert (done.returncode, done.stderr) == (
        1,
        f"tpudata: error: {tmp_path}/in/cat/a.tif: rejected: TIFF that cannot be decoded: its pixels are cut or damaged\n",
    )
