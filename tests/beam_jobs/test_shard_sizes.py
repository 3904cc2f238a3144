"""If there are 20 shards or more, each is within 15 % of the requested size, for any input."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from beam_jobs.images import run
from tpudata.format import Split, open_dataset

COUNT = 400


def drawing(random: np.random.Generator, side: int) -> npt.NDArray[np.uint8]:
    """A picture with little noise, which takes far fewer bytes as a PNG or JPEG than as pixels: uint8 [side, side, 3]."""
    ramp = np.linspace(0, 200, side)[:, None, None] * random.random(3)
    return (ramp + random.integers(0, 8, (side, side, 3))).astype(np.uint8)


def save(path: Path, pixels: npt.NDArray[np.uint8], form: str, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, form, **options)


def bitmaps(root: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(COUNT):
        save(root / f"c{number % 3}" / f"{number}.bmp", drawing(random, 24), "BMP")
    return root


def turned(root: Path) -> Path:
    random = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(COUNT):
        save(root / f"c{number % 3}" / f"{number}.jpg", drawing(random, 40), "JPEG", quality=30, exif=exif)
    return root


def digits(root: Path) -> Path:
    random = np.random.default_rng(0)
    pixels = np.zeros((4 * COUNT, 28, 28), np.uint8)
    pixels[:, 8:20, 8:20] = random.integers(0, 2, (4 * COUNT, 12, 12)) * 255
    root.mkdir()
    (root / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *pixels.shape) + pixels.tobytes())
    labels = random.integers(0, 10, 4 * COUNT).astype(np.uint8)
    (root / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, len(labels)) + labels.tobytes())
    return root


def captions(root: Path) -> Path:
    random = np.random.default_rng(0)
    rows = []
    for number in range(COUNT):
        save(root / "pictures" / f"{number}.jpg", drawing(random, 16), "JPEG")
        note = "ein Überblick " * int(random.integers(20, 200))
        rows.append(json.dumps({"path": f"pictures/{number}.jpg", "label": "a", "caption": note}))
    (root / "list.jsonl").write_text("\n".join(rows) + "\n")
    return root / "list.jsonl"


def unlike_splits(root: Path) -> Path:
    random = np.random.default_rng(0)
    for split, side in (("train", 120), ("validation", 40)):
        for number in range(COUNT):
            save(root / split / "c" / f"{number}.jpg", drawing(random, side), "JPEG", quality=95)
    return root


def mixed(root: Path) -> Path:
    random = np.random.default_rng(0)
    # Two forms take more pictures to even out.
    for number in range(3 * COUNT // 2):
        form = ("BMP", "JPEG")[number % 2]
        save(root / f"c{number % 3}" / f"{number}.{form}", drawing(random, 24), form)
    return root


def check(split: Split, size: str) -> None:
    target = 1000 * int(size.removesuffix("kB"))
    assert len(split.shards) >= 20
    assert [shard for shard in split.shards if not 0.85 * target <= shard.bytes <= 1.15 * target] == []


MADE: dict[Callable[[Path], Path], Path] = {}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("make", "size", "flags"),
    [
        (bitmaps, "20kB", []),
        (turned, "14kB", []),
        pytest.param(digits, "20kB", [], marks=pytest.mark.matrix),
        (digits, "40kB", ["--layout=raw"]),
        (captions, "40kB", []),
        pytest.param(mixed, "30kB", [], marks=pytest.mark.matrix),
        (mixed, "25kB", ["--jpeg-only"]),
        (unlike_splits, "17kB", ["--resize-shorter=36"]),
        pytest.param(unlike_splits, "20kB", [], marks=pytest.mark.matrix),
    ],
)
def test_shards_are_within_15_percent_of_the_requested_size(
    make: Callable[[Path], Path], size: str, flags: list[str], tmp_path: Path, sources: Path
) -> None:
    if make not in MADE:
        MADE[make] = make(sources / make.__name__)
    assert run(["--input", str(MADE[make]), "--output", str(tmp_path / "out"), "--shard-size", size, *flags]) == 0
    for split in open_dataset(str(tmp_path / "out")).manifest.splits.values():
        check(split, size)


def test_dry_run_plans_the_shards_of_a_compressed_tar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for number in range(COUNT):
            file = io.BytesIO()
            Image.fromarray(drawing(random, 80)).save(file, "JPEG", quality=95)
            info = tarfile.TarInfo(f"c{number % 3}/{number}.jpg")
            info.size = len(file.getvalue())
            tar.addfile(info, io.BytesIO(file.getvalue()))
    argv = ["--input", str(tmp_path / "a.tar.gz"), "--output", str(tmp_path / "out"), "--shard-size=17kB"]
    argv += ["--resize-shorter=30", "--unlabelled"]
    assert run([*argv, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert run(argv) == 0
    split = open_dataset(str(tmp_path / "out")).manifest.split("train")
    check(split, "17kB")
    (row,) = [line.split() for line in planned.splitlines() if line.startswith("train")]
    assert row[1:3] == [str(split.records), str(len(split.shards))]
