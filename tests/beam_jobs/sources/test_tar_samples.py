"""Samples of a WebDataset beyond image and class: columns of their JSON, and label maps."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tpudata
from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.images import encode, exif, picture
from tests.beam_jobs.outcomes import SKIP
from tests.beam_jobs.sources.inputs import converted, jpeg, listed, listed_and_rejected, opened
from tests.beam_jobs.sources.test_tars import FLAT, GZ, write_tar
from tests.helpers.label_maps import PALETTE, png_of
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import open_dataset, verify


def bytes_of(values: Any) -> bytes:
    (data,) = values
    return bytes(data)


@pytest.mark.parametrize("scalar", [0, False, 0.0])
def test_rejects_a_scalar_in_a_column_of_lists(tmp_path: Path, scalar: float) -> None:
    path = write_tar(tmp_path, with_json([{"label": 0, "x": [1]}, {"label": 0, "x": scalar}, {"label": 0, "x": None}]))
    manifest = tpudata.convert_images(path, tmp_path / "out", column_types={"x": "ints"}, **SKIP)
    assert manifest.splits["train"].records == 2


def with_json(rows: Iterable[Any]) -> list[tuple[str, bytes]]:
    samples = (((f"{n}.jpg", jpeg(n)), (f"{n}.json", json.dumps(row).encode())) for n, row in enumerate(rows))
    return [member for sample in samples for member in sample]


@GZ
def test_stores_keys_of_json_as_columns(tmp_path: Path, gz: bool) -> None:
    rows = [
        {"label": n, "age": n, "size": 0.5 * n, "name": f"é{n}", "tags": ["a"] * n, "nested": {"a": 1}, "none": None}
        for n in range(3)
    ]
    rows[2] |= {"late": "x", "size": None, "nested": 3}
    source = opened(write_tar(tmp_path, with_json(rows), gz))
    assert {feature.name: (feature.dtype, feature.shape) for feature in source.features} == {
        "age": ("int64", ()),
        "name": ("string", ()),
        "none": ("string", ()),
        "size": ("float32", ()),
        # The first sample of a compressed tar shows the kinds alone, and has an empty list.
        "tags": (("int64" if gz else "string"), (None,)),
        **({} if gz else {"late": ("string", ())}),
    }
    found = [reference.features for reference in listed(source)]
    assert [(one["age"], one["name"], one["tags"], one["none"]) for one in found] == [
        (n, f"é{n}", ["a"] * n, "") for n in range(3)
    ]
    assert math.isnan(found[2]["size"])
    manifest = tpudata.convert_images(write_tar(tmp_path, with_json(rows), gz), tmp_path / "out", **SKIP)
    (warning,) = (line for line in manifest.warnings.values() if line.startswith("fields of samples"))
    assert "nested in json" in warning
    assert ("late in json" in warning) == gz


def test_rejects_missing_columns_of_samples_without_a_declared_default(tmp_path: Path) -> None:
    rows = [{"label": 1, "age": 3}, {"label": 1}, {"label": 1, "age": "old"}]
    path = write_tar(tmp_path, with_json(rows[:2]))
    with pytest.raises(SourceError, match=r"data\.tar/1\.json: column 'age' has no value.*--column-types age=int=0"):
        opened(path)
    assert [one.features["age"] for one in listed(opened(path, SourceOptions(column_types={"age": "int=-1"})))] == [
        3,
        -1,
    ]
    write_tar(tmp_path, with_json([rows[0]] * 100 + rows[1:]))
    references, (error,) = listed_and_rejected(opened(path))
    assert error.source == f"{path}/100"
    assert "column 'age' has no value" in (error.reason or "")
    # A value of another kind is found when its record is made.
    assert references[-1].features["age"] == "old"
    with pytest.raises(BadRecordError, match="no int64 in column 'age': 'old'"):
        converted(write_tar(tmp_path, with_json([rows[0]] * 100 + rows[2:])), tmp_path / "out")
    with pytest.raises(UsageError, match="--column-types: no extra column 'x'"):
        opened(path, SourceOptions(column_types={"x": "str"}))
    with pytest.raises(
        UsageError, match=r"--column-types is for CSV and JSONL lists, and .* is a tar of images in folders"
    ):
        opened(write_tar(tmp_path, FLAT), SourceOptions(column_types={"x": "int"}))


def test_label_maps_turn_and_shrink_with_their_pictures(tmp_path: Path) -> None:
    classes = np.arange(24 * 40, dtype=np.uint8).reshape(24, 40) % 5
    maps = [png_of(classes), png_of(classes, 8, PALETTE), png_of(classes)]
    pictures = [
        encode(picture(24, 40), "JPEG", exif=exif(6)) if n == 2 else encode(picture(24, 40), "PNG") for n in range(3)
    ]
    members = [(f"{n}.{end}", data) for n in range(3) for end, data in (("jpg", pictures[n]), ("seg.png", maps[n]))]
    path = write_tar(tmp_path, [(name.replace("jpg", "png") if name < "2" else name, data) for name, data in members])
    flags = ["--input", str(path), "--unlabelled", "--output"]
    assert run([*flags, str(tmp_path / "out"), "--no-shuffle"]) == 0
    assert not list(verify(str(tmp_path / "out")))
    (feature,) = [one for one in open_dataset(str(tmp_path / "out")).manifest.features if one.is_label_map]
    assert (feature.name, feature.dtype) == ("image/segmentation/class/encoded", "uint8")
    records = list(open_dataset(str(tmp_path / "out")).examples("train"))
    found = [np.asarray(Image.open(io.BytesIO(bytes_of(record[feature.name])))) for record in records]
    for got, want in zip(found, [classes, classes, np.rot90(classes, -1)], strict=True):
        np.testing.assert_array_equal(got, want)
    assert run([*flags, str(tmp_path / "small"), "--no-shuffle", "--resize-shorter=12"]) == 0
    (small, *_) = open_dataset(str(tmp_path / "small")).examples("train")
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO(bytes_of(small[feature.name])))), classes[1::2, 1::2]
    )

    write_tar(
        tmp_path,
        [("0.png", pictures[0]), ("0.seg.png", maps[0]), ("1.png", pictures[0]), ("1.seg.png", png_of(classes[1:]))],
    )
    with pytest.raises(BadRecordError, match="annotated as 40 x 23 pixels, but the picture has 40 x 24"):
        run([*flags, str(tmp_path / "odd")])
    _, (error,) = listed_and_rejected(
        opened(write_tar(tmp_path, [*members[:2], ("1.jpg", jpeg(1))]), SourceOptions(unlabelled=True))
    )
    assert error.reason == "no label map, and the first sample has one"
