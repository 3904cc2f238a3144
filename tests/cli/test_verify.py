from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_jobs.images import run
from tests.helpers.datasets import write_dataset, write_undecodable
from tests.helpers.label_maps import png_of
from tests.helpers.objects import FEATURES, record_of
from tests.helpers.processes import assert_nobody_is_left
from tpudata.cli import main

ROOT = Path(__file__).parents[2]


def draw(folder: Path, count: int) -> list[Path]:
    """Draw noise in three class folders, JPEG and PNG, grey, coloured, with alpha and with a palette."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(count):
        path = folder / ("cat", "dog", "eel")[number % 3] / f"{number:03d}.{('jpg', 'png')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(random.integers(0, 256, (*random.integers(8, 40, 2), 3), np.uint8))
        modes = ("RGB", "L") if number % 2 == 0 else ("RGB", "L", "P", "RGBA", "1")
        picture.convert(modes[number % len(modes)]).save(path)
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    draw(root / "pictures", 40)
    (root / "pictures" / "cat" / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    flags = ["--shard-size=20kB", "--split=train=0.7,validation=0.3", "--on-bad-record=skip", "--max-bad-records=1"]
    assert run([f"--input={root / 'pictures'}", f"--output={root / 'out'}", *flags]) == 0
    return root / "out"


@pytest.fixture
def copied(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "copy"))


def test_finds_no_defects_in_a_converted_folder(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(converted)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == f"{converted}: no defects"
    assert lines[1].split() == ["split", "records", "shards", "bytes"]
    assert sum(int(line.split()[1]) for line in lines[2:]) == 40
    assert shown.err == ""
    assert main(["verify", str(converted), "--json", "--workers=2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(converted), "defects": []}


def test_finds_no_defects_in_multilabel_records_with_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = draw(tmp_path / "pictures", 12)
    rows = [
        {
            "path": str(path),
            "labels": ["a", "b", "c"][: number % 4],
            "zip": f"0{number}",
            "age": number,
            "weight": 0.5 * number,
        }
        for number, path in enumerate(paths)
    ]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"--input={tmp_path / 'list.jsonl'}", f"--output={tmp_path / 'out'}", "--label-offset=1"]
    assert run(arguments) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "no defects" in capsys.readouterr().out


def test_finds_undecodable_images_only_with_decode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_undecodable(str(tmp_path))
    assert main(["verify", path]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: no defects")
    for flags in ((), ("--workers=2",)):
        assert main(["verify", path, "--decode", *flags]) == 1
        first, last = capsys.readouterr().out.splitlines()
        place, _, reason = first.partition(": ")
        assert place.startswith(f"{path}/train-00001-of-00002.tfrecord at byte ")
        assert reason.startswith("feature 'image/encoded' does not decode: the checksum of the PNG's IDAT chunk")
        assert last == f"{path}: 1 defect"


def test_finds_no_defects_in_raw_pixels(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 6), number).save(path)
    assert run([f"--input={tmp_path / 'pictures'}", f"--output={tmp_path / 'out'}", "--layout=raw"]) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_prints_one_line_per_defect(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = sorted(copied.glob("train-*.tfrecord"))
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    second.unlink()
    assert main(["verify", str(copied)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{first} at byte 0: the checksum of a record of ")
    assert lines[1].startswith(f"{second}: is missing")
    assert lines[2:] == [f"{copied}: 2 defects"]
    assert main(["verify", str(copied), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["defects"]
    assert [(defect["path"], defect["offset"]) for defect in found] == [(str(first), 0), (str(second), None)]


@pytest.mark.parametrize("flags", [(), ("--workers=2", "--decode")])
def test_reports_the_kind_of_each_annotation_defect(
    tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    box, turned = (0.0, 0.0, 1.0, 0.5), png_of(np.zeros((96, 48), int))
    records = [
        record_of([box], [0]),
        record_of([(0.0, 0.0, 2.0, 0.5)], [0]),
        record_of([box], [5]),
        record_of([(0.5, 0.0, 0.5, 0.5)], [0]),
        record_of([box], [0], caption=[], text=[]),
        record_of([box], [0], mask=[turned]),
    ]
    path = write_dataset(str(tmp_path / "d"), {"train": records}, FEATURES, layout="imagenet", shards=2, classes=2)
    assert main(["verify", path, *flags]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{path}: 5 defects (boxes 2, classes 1, lists 1, masks 1)"
    assert main(["verify", path, "--json", *flags]) == 1
    found = json.loads(capsys.readouterr().out)["defects"]
    assert [defect["kind"] for defect in found] == ["boxes", "classes", "boxes", "lists", "masks"]
    assert main(["verify", path, "--quarantine", *flags]) == 0
    assert f"{path}: readers skip 5 records in 2 shards" in capsys.readouterr().out


def test_reports_rejected_inputs_missing_from_the_list(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rejects,) = (copied / "rejects").iterdir()
    rejects.unlink()
    assert main(["verify", str(copied)]) == 1
    assert f"{copied / 'rejects'}: lists 0 rejected inputs, the manifest counts 1" in capsys.readouterr().out


def test_rejects_a_folder_without_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "has no manifest.json" in capsys.readouterr().err


def test_rejects_a_worker_count_of_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path), "--workers=0"]) == 2
    assert "'0' is not a whole number of 1 or more" in capsys.readouterr().err


def test_worker_processes_run_no_files_of_the_working_directory(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "types.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", str(converted), "--workers=2"]) == 0
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's lists of a process's children")
def test_sigterm_ends_workers_and_prints_one_line(converted: Path) -> None:
    command = [sys.executable, "-m", "tpudata", "verify", str(converted), "--workers=2"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while len(children.read_text().split()) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "tpudata: ended by SIGTERM\n")
    assert_nobody_is_left(process.pid)
