"""Images whose headers contradict their records, found by verifying datasets."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.beam_jobs.images import encode, picture
from tests.helpers.datasets import write_dataset
from tests.helpers.label_maps import PALETTE, png_of
from tests.helpers.objects import FEATURES, record_of
from tpudata import DatasetError, Images, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.format import Feature

JPEG, PNG = encode(picture(24, 40), "JPEG"), encode(picture(24, 40), "PNG")
ALPHA = encode(Image.fromarray(picture(24, 40)).convert("LA"), "PNG")
RECORD = {"image/encoded": JPEG, "image/format": "JPEG", "image/height": 24, "image/width": 40, "image/channels": 3}


def features(height: int | None = None) -> list[Feature]:
    return [
        Feature("image/encoded", "bytes", "uint8", (height, None, 3), "image"),
        Feature("image/format", "bytes", "string", encoding="utf8"),
        *(Feature(f"image/{part}", "int64", "int64") for part in ("height", "width", "channels")),
    ]


def verify_record(
    folder: Path, record: dict[str, Any], schema: list[Feature], *flags: str
) -> list[tuple[int | None, str]]:
    """Return the offset and the reason of each defect that `tpudata verify` finds in a dataset of one record."""
    write_dataset(str(folder), {"train": [record]}, schema, layout="imagenet", shards=1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(["verify", str(folder), "--json", *flags])
    defects = json.loads(output.getvalue())["defects"]
    assert code == bool(defects)
    return [(defect["offset"], defect["reason"]) for defect in defects]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image/height": 25}, "feature 'image/height' is 25; the image's header says 24"),
        ({"image/width": 24}, "feature 'image/width' is 24; the image's header says 40"),
        ({"image/channels": 1}, "feature 'image/channels' is 1; the image's header says 3"),
        ({"image/encoded": PNG}, "feature 'image/format' is b'JPEG'; the image is a PNG"),
        ({"image/encoded": b"\0\0\0\x20ftypavif"}, "feature 'image/format' is b'JPEG'; the image is an AVIF"),
        ({"image/encoded": JPEG[:-40]}, "feature 'image/encoded': JPEG cut"),
        ({"image/encoded": b"GIF"}, "feature 'image/encoded': unknown image format"),
        ({"image/encoded": b""}, "feature 'image/encoded': the file is empty"),
    ],
)
def test_names_a_value_that_contradicts_the_image(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    ((offset, said),) = verify_record(tmp_path, {**RECORD, **changes}, features())
    assert offset == 0
    assert said.startswith(reason)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image/encoded": PNG, "image/format": "png"},
        {"image/encoded": ALPHA, "image/format": "PNG", "image/channels": 1},
        {"image/encoded": ALPHA, "image/format": "PNG", "image/channels": 2},
    ],
)
def test_finds_nothing_if_record_and_image_agree(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert verify_record(tmp_path, {**RECORD, **changes}, features(24)) == []


def damaged(image: bytes) -> bytes:
    """Return the image with a changed byte in its pixels and an intact header."""
    at = len(image) // 2
    return image[:at] + bytes([image[at] ^ 255]) + image[at + 1 :]


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (damaged(PNG), "PNG", "feature 'image/encoded' does not decode: the checksum of the PNG's IDAT chunk"),
        (JPEG[:-100] + b"\xff\xc3" + JPEG[-98:], "JPEG", "feature 'image/encoded' does not decode: JPEG that cannot"),
    ],
)
def test_finds_undecodable_images_only_by_decoding(tmp_path: Path, data: bytes, name: str, reason: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_image(data)
    record = {**RECORD, "image/encoded": data, "image/format": name}
    assert verify_record(tmp_path / "a", record, features()) == []
    ((offset, said),) = verify_record(tmp_path / "b", record, features(), "--decode")
    assert offset == 0
    assert said.startswith(reason)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image/encoded": PNG, "image/format": "PNG"},
        {"image/encoded": JPEG[:-40]},
        {"image/encoded": b"GIF"},
        {"image/height": 25},
    ],
)
def test_decoding_finds_nothing_else(tmp_path: Path, changes: dict[str, Any]) -> None:
    record = {**RECORD, **changes}
    expected = verify_record(tmp_path / "a", record, features())
    assert verify_record(tmp_path / "b", record, features(), "--decode") == expected


@pytest.mark.parametrize("name", ["TIFF", "PPM"])
def test_reports_formats_that_tensorflow_does_not_decode(tmp_path: Path, name: str) -> None:
    data = encode(picture(24, 40), name)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_image(data)
    record = {**RECORD, "image/encoded": data, "image/format": name}
    assert verify_record(tmp_path / "a", record, features()) == []
    said = f"feature 'image/encoded' is a {name}, which TensorFlow does not decode; convert it to JPEG or PNG"
    assert verify_record(tmp_path / "b", record, features(), "--decode") == [(0, said)]


# TensorFlow 2.20 may not know it.
WEBP = pytest.param("WebP", marks=pytest.mark.skipif(not hasattr(tf.raw_ops, "DecodeWebP"), reason="no WebP"))


@pytest.mark.parametrize("name", ["GIF", "BMP", WEBP])
def test_finds_truncated_images_of_the_other_formats(tmp_path: Path, name: str) -> None:
    data = encode(picture(24, 40), name)
    assert tf.io.decode_image(data, 3, expand_animations=False).shape == (24, 40, 3)
    record = {**RECORD, "image/encoded": data, "image/format": name}
    assert verify_record(tmp_path / "a", record, features(), "--decode") == []
    cut = {**record, "image/encoded": data[: len(data) // 2]}
    ((offset, said),) = verify_record(tmp_path / "b", cut, features(), "--decode")
    assert offset == 0
    assert said.startswith(f"feature 'image/encoded' does not decode: {name} that cannot")
    input_fn = make_input_fn(tmp_path / "b", "train", training=False, images=Images(size=(24, 40)))
    with pytest.raises(DatasetError, match=r"an encoded image does not decode.* --decode"):
        list(as_numpy(input_fn, 1))


def test_finds_a_size_that_differs_from_the_manifest(tmp_path: Path) -> None:
    assert verify_record(tmp_path, RECORD, features(25)) == [
        (0, "feature 'image/encoded' has height 24; the manifest says 25")
    ]


def test_checks_an_image_that_is_the_only_feature(tmp_path: Path) -> None:
    schema = [Feature("picture", "bytes", "uint8", (None, None, 3), "image")]
    assert verify_record(tmp_path, {"picture": encode(picture(), "WEBP")}, schema) == []
    ((_, said),) = verify_record(tmp_path, {"picture": PNG[:-5]}, schema)
    assert re.match("feature 'picture': PNG cut", said)


def test_finds_label_maps_that_readers_would_decode_wrongly(tmp_path: Path) -> None:
    schema = [Feature("map", "bytes", "uint8", (2, None, 1), "label_map")]
    whole = png_of([[1, 2, 3], [4, 5, 6]])
    for number, (data, reason, decoded) in enumerate(
        (
            (whole, "", ""),
            (
                png_of([[1, 2], [3, 1]], 8, PALETTE),
                "is a PNG of 8 bits, palette; a label map of uint8 is a PNG of 8 bits",
                "",
            ),
            (
                png_of([[1, 2], [3, 1]], 16),
                "is a PNG of 16 bits, grey; a label map of uint8 is a PNG of 8 bits, grey",
                "",
            ),
            (JPEG, "is no PNG; a label map of uint8", ""),
            (whole[:-4], "PNG cut", ""),
            (png_of([[1, 2]]), "has height 1; the manifest says 2", ""),
            (whole.replace(b"IDAT\x78", b"IDAT\x79"), "", "does not decode"),
        )
    ):
        for flags, expected in (((), reason), (("--decode",), reason or decoded)):
            problems = verify_record(tmp_path / f"{number}{'decode' * len(flags)}", {"map": data}, schema, *flags)
            assert len(problems) == bool(expected), (problems, expected)
            assert all(expected in text and "'map'" in text for _, text in problems)


def test_finds_masks_and_label_maps_that_differ_in_size_from_the_picture(tmp_path: Path) -> None:
    boxes = [(0.0, 0.0, 1.0, 0.5), (0.0, 0.0, 0.5, 1.0)]
    whole, turned = png_of(np.zeros((48, 96), int)), png_of(np.zeros((96, 48), int))
    odd: dict[str, Any] = {"mask": [whole, turned], "map": turned}
    picture = "the picture 'image/encoded' has 96 x 48"
    reasons = {
        "mask": f"mask 1 of 'image/object/mask' has 48 x 96 pixels; {picture}",
        "map": f"feature 'image/segmentation/class/encoded' has 48 x 96 pixels; {picture}",
    }
    for name, value in odd.items():
        assert verify_record(tmp_path / name, record_of(boxes, [0, 1], **{name: value}), [*FEATURES]) == [
            (0, reasons[name])
        ]
    for number, data in enumerate((b"mask", b"", whole[:-4])):
        record = record_of(boxes, [0, 1], mask=[whole, data])
        assert verify_record(tmp_path / str(number), record, [*FEATURES]) == [
            (0, "mask 1 of 'image/object/mask' is not a PNG, or a cut one")
        ]
    kept = encode(Image.fromarray(np.zeros((48, 96, 3), np.uint8)), "GIF")
    assert verify_record(tmp_path / "gif", {**record_of(boxes, [0, 1]), "image/encoded": kept}, [*FEATURES]) == []


def test_finds_a_label_map_that_differs_in_size_from_a_picture_whose_name_has_no_slash(tmp_path: Path) -> None:
    picture = Feature("image", "bytes", "uint8", (None, None, 3), "image")
    label_map = Feature("mask", "bytes", "uint8", (None, None, 1), "label_map")
    for size, expected in ((10, ["feature 'mask' has 10 x 10 pixels; the picture 'image' has 12 x 10"]), (12, [])):
        record = {
            "image": encode(Image.fromarray(np.zeros((10, 12, 3), np.uint8)), "PNG"),
            "mask": png_of(np.zeros((10, size), int)),
        }
        problems = verify_record(tmp_path / str(size), record, [picture, label_map])
        assert [reason for _, reason in problems] == expected
