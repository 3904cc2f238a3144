"""What a conversion prints when it is done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from beam_jobs.images import run
from beam_jobs.text import run as run_text
from tests.beam_jobs.images import encode, picture
from tests.helpers.pictures import make_pictures
from tpudata.cli import main
from tpudata.format import open_dataset

FLAGS = ("--on-bad-record=skip", "--max-bad-records=100%")


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    run(["--input", str(folder / "in"), "--output", str(folder / "out"), *FLAGS, *flags])
    return capsys.readouterr().out.splitlines()


def test_joins_reasons_without_a_dot_before_the_comma(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"PK\x03\x04")
    (tmp_path / "in" / "b.txt").write_bytes(b"7z\xbc\xaf\x27\x1c")
    (tmp_path / "in" / "c.txt").write_text("one\n")
    run_text([f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("rejected"))
    reasons = [f"1 a {kind} archive. Unpack it, and pass the folder" for kind in ("7z", "zip")]
    assert line == f"rejected    2: {', '.join(reasons)}; listed in {tmp_path}/out/rejects/"


def test_counts_rejected_ignored_and_re_encoded_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_pictures(tmp_path / "in", 9)
    cmyk = encode(Image.fromarray(picture()).convert("CMYK"), "JPEG")
    files = {
        "a.jpg": cmyk,
        "b.jpg": cmyk,
        "c.gif": encode(Image.fromarray(picture()), "GIF"),
        "d.jpg": b"",
        "e.jpg": b"no",
    }
    for name, data in {**files, "f.jpg": b"no", ".hidden": b""}.items():
        (source / "cat" / name).write_bytes(data)
    lines = printed(tmp_path, capsys)
    assert f"{tmp_path / 'out'}: 12 records, 3 classes in" in lines[0]
    assert lines[-3:] == [
        f"rejected    3: 2 unknown image format, 1 the file is empty; listed in {tmp_path / 'out'}/rejects/",
        "ignored     1 by its name",
        "re-encoded  3: 2 CMYK, 1 GIF",
    ]
    # An append prints what it met; the manifest and `inspect` have the sums.
    (source / "dog" / "new.jpg").write_bytes(cmyk)
    (source / "dog" / "bad.jpg").write_bytes(b"no")
    (source / "dog" / ".hidden").write_bytes(b"")
    lines = printed(tmp_path, capsys, "--append")
    assert "1 record added in" in lines[0]
    assert lines[-3:] == [
        f"rejected    1: 1 unknown image format; listed in {tmp_path / 'out'}/rejects/",
        "ignored     2 by their names",
        "re-encoded  1: 1 CMYK",
    ]
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.converted == {"CMYK": 3, "GIF": 1}
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["converted"], shown["rejected"]) == (
        {"CMYK": 3, "GIF": 1},
        {"unknown image format": 3, "the file is empty": 1},
    )
    assert shown["source"]["ignored_files"] == 2
    assert main(["inspect", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"re-encoded  reason\n +3  CMYK\n +1  GIF\n", text)
    assert "2 files ignored" in text


def test_omits_lines_with_a_count_of_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures(tmp_path / "in", 6)
    assert len(printed(tmp_path, capsys)) == 3
    assert main(["inspect", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "re-encoded" not in text
    assert "ignored" not in text


def test_a_count_of_one_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / ".hidden").write_bytes(b"")
    Image.new("L", (5, 6)).save(tmp_path / "in" / "cat" / "x.png")
    assert printed(tmp_path, capsys, "--dry-run")[0].startswith("1 file, ")
    assert re.search(r": 1 record, 1 class in [\d.]+ s \(\d+ records?/s, ", printed(tmp_path, capsys)[0])
    assert main(["inspect", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    for words in (": 1 record in ", "\n1 class: cat\n", ": 1 input, ", ", 1 file ignored", "1 class, label 0"):
        assert words in text
