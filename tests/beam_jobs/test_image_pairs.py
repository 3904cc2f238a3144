"""Pairs of pictures: halves of one file, and files of two folders."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from beam_jobs.images import run
from tests.beam_jobs.images import encode, exif, picture
from tests.helpers.pictures import digests
from tpudata import Images, as_numpy, convert_images, make_input_fn
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import open_dataset, verify

IMAGE, TARGET = "image/encoded", "image/target/encoded"


def records(dataset: Path, split: str = "train") -> dict[str, dict[str, Any]]:
    found = open_dataset(str(dataset)).examples(split)
    return {bytes(record["image/filename"][0]).decode(): record for record in found}  # type: ignore[arg-type]


def pixels(record: dict[str, Any], name: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(record[name][0])))


def write_halves(root: Path, count: int = 3) -> None:
    """pix2pix: one file with both pictures, under split folders."""
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        for number in range(count):
            (root / split / f"{number}.jpg").write_bytes(encode(picture(16, 32), "JPEG", quality=95))


@pytest.mark.parametrize("half", ["left", "right"])
def test_stores_halves_as_image_and_target(tmp_path: Path, half: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encode(picture(16, 32), "PNG"))
    flags = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--unlabelled"]
    assert run([*flags, "--target-half", half]) == 0
    record = records(tmp_path / "out")["a.png"]
    left, right = picture(16, 32)[:, :16], picture(16, 32)[:, 16:]
    np.testing.assert_array_equal(pixels(record, TARGET), left if half == "left" else right)
    np.testing.assert_array_equal(pixels(record, IMAGE), right if half == "left" else left)
    assert (record["image/height"], record["image/width"]) == ([16], [16])
    assert not list(verify(str(tmp_path / "out")))


def test_halves_keep_splits_and_are_resized_separately(tmp_path: Path) -> None:
    write_halves(tmp_path / "in")
    flags = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--unlabelled"]
    assert run([*flags, "--target-half=right", "--resize-shorter=8"]) == 0
    assert sorted(open_dataset(str(tmp_path / "out")).manifest.splits) == ["train", "validation"]
    for record in records(tmp_path / "out", "validation").values():
        assert pixels(record, IMAGE).shape == pixels(record, TARGET).shape == (8, 8, 3)


def test_rejects_a_picture_of_odd_width(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encode(picture(16, 33), "PNG"))
    flags = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--unlabelled"]
    with pytest.raises(BadRecordError, match="of an odd width, 33 pixels"):
        run([*flags, "--target-half=left"])


def write_folders(root: Path, names: tuple[str, ...] = ("train/a", "train/b", "test/c")) -> list[str]:
    """Two folders with equal names, in different formats and sizes."""
    for name in names:
        for folder, data in (("A", encode(picture(8, 12), "JPEG")), ("B", encode(picture(16, 24), "PNG"))):
            path = root / folder / f"{name}.{'jpg' if folder == 'A' else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return ["--input", str(root / "A"), "--targets", str(root / "B")]


def test_pairs_pictures_of_two_folders_by_name(tmp_path: Path) -> None:
    flags = write_folders(tmp_path / "in")
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    assert {split: sorted(records(tmp_path / "out", split)) for split in ("train", "test")} == {
        "train": ["train/a.jpg", "train/b.jpg"],
        "test": ["test/c.jpg"],
    }
    record = records(tmp_path / "out", "test")["test/c.jpg"]
    assert record[IMAGE] == [(tmp_path / "in" / "A" / "test" / "c.jpg").read_bytes()]
    assert record[TARGET] == [(tmp_path / "in" / "B" / "test" / "c.png").read_bytes()]
    assert not list(verify(str(tmp_path / "out")))


def test_targets_follow_the_rules_for_images(tmp_path: Path) -> None:
    flags = write_folders(tmp_path / "in", ("a",))
    (tmp_path / "in" / "B" / "a.png").unlink()
    (tmp_path / "in" / "B" / "a.jpeg").write_bytes(encode(picture(16, 24), "JPEG", exif=exif(6)))
    assert run([*flags, "--output", str(tmp_path / "out"), "--resize-shorter=8"]) == 0
    record = records(tmp_path / "out")["a.jpg"]
    assert pixels(record, TARGET).shape == (12, 8, 3)
    (tmp_path / "in" / "B" / "a.jpeg").write_bytes(b"<html>")
    with pytest.raises(BadRecordError, match="its target: HTML"):
        run([*flags, "--output", str(tmp_path / "bad")])


def test_rejects_a_picture_without_its_partner(tmp_path: Path) -> None:
    flags = write_folders(tmp_path / "in")
    (tmp_path / "in" / "B" / "train" / "a.png").unlink()
    with pytest.raises(
        BadRecordError, match=r"no second picture of its name in .*B; add it, or pass --unannotated=skip"
    ):
        run([*flags, "--output", str(tmp_path / "fail")])
    assert run([*flags, "--output", str(tmp_path / "skip"), "--unannotated=skip"]) == 0
    assert len(records(tmp_path / "skip")) == 1
    (tmp_path / "in" / "A" / "train" / "b.jpg").unlink()
    with pytest.raises(BadRecordError, match="no such picture in the input"):
        run([*flags, "--output", str(tmp_path / "more"), "--unannotated=skip"])


@pytest.mark.matrix
def test_two_workers_write_the_same_bytes_and_an_append_adds_pairs(tmp_path: Path) -> None:
    flags = write_folders(tmp_path / "in")
    for name, workers in (("one", 1), ("two", 2)):
        assert run([*flags, "--output", str(tmp_path / name), f"--workers={workers}"]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    write_folders(tmp_path / "in", ("train/more",))
    assert run([*flags, "--output", str(tmp_path / "one"), "--append"]) == 0
    assert sorted(records(tmp_path / "one")) == ["train/a.jpg", "train/b.jpg", "train/more.jpg"]


def test_input_fn_feeds_both_pictures(tmp_path: Path) -> None:
    write_halves(tmp_path / "in")
    convert_images(tmp_path / "in", tmp_path / "out", unlabelled=True, target_half="right")
    input_fn = make_input_fn(
        str(tmp_path / "out"),
        "validation",
        training=False,
        images=Images(size=(16, 16), dtype="float32"),
        extra_features=(TARGET,),
    )
    (batch,) = as_numpy(input_fn, 3)
    expected = picture(16, 32) / 255
    assert batch["image"].shape == batch[TARGET].shape == (3, 16, 16, 3)
    np.testing.assert_allclose(batch["image"][0], expected[:, :16], atol=0.08)
    np.testing.assert_allclose(batch[TARGET][0], expected[:, 16:], atol=0.08)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target-half=left", "--layout=raw"], "--target-half: layout raw has one image"),
        (["--target-half=left", "--masks=masks"], "--target-half: annotations are of whole pictures"),
        (["--targets=masks", "--masks=masks"], "--masks and --targets: choose one"),
    ],
)
def test_rejects_flags_that_do_not_fit_pairs(tmp_path: Path, flags: list[str], message: str) -> None:
    write_halves(tmp_path / "in")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "0.png").write_bytes(encode(np.zeros((16, 32), np.uint8), "PNG"))
    placed = [flag.replace("=masks", f"={tmp_path}/masks") for flag in flags]
    with pytest.raises(UsageError, match=message):
        run(["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *placed])


def test_rejects_a_folder_of_targets_without_pictures(tmp_path: Path) -> None:
    write_folders(tmp_path / "in")
    (tmp_path / "none").mkdir()
    flags = ["--input", str(tmp_path / "in" / "A"), "--output", str(tmp_path / "out")]
    with pytest.raises(SourceError, match=r"--targets .*none: no pictures"):
        run([*flags, "--targets", str(tmp_path / "none")])
