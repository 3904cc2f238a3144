"""Label maps of a user's examples: what is stored, as Pillow reads it, and what is rejected."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.beam_jobs.examples.flowers import write
from tests.beam_jobs.images import encode
from tests.helpers.label_maps import GREY, PALETTE, png_of
from tpudata.errors import FeatureError
from tpudata.format import Feature, open_dataset

SMALL = np.array([[0, 1, 1], [1, 0, 1]])
CLASSES = np.array([[0, 1, 20], [7, 255, 13]])
MANY = np.array([[0, 256, 65535], [7, 255, 300]])


UNUSED_CHUNKS = png_of(CLASSES, chunks=[(b"tRNS", b"\0\x14"), (b"gAMA", b"\0\0\xb1\x8f")])


def write_maps(
    values: Iterable[Any], output: Path, dtype: str, shape: tuple[int | None, ...] = (None, None, 1)
) -> None:
    schema = (Feature("number", "int64", "int64"), Feature("map", "bytes", dtype, shape, "label_map"))
    write(({"number": number, "map": value} for number, value in enumerate(values)), output, features=schema)


# Values by the dtype of their feature, and the classes that a reader must get.
STORED: dict[str, list[tuple[Any, Any]]] = {
    "uint8": [
        (CLASSES, CLASSES),
        (CLASSES.astype(np.uint8)[..., None], CLASSES),
        (CLASSES.tolist(), CLASSES),
        (SMALL.astype(bool), SMALL),
        (png_of(CLASSES, 8, PALETTE), CLASSES),
        (png_of(CLASSES, 16), CLASSES),
        *((png_of(SMALL, bits, colour), SMALL) for bits in (1, 2, 4) for colour in (GREY, PALETTE)),
        (png_of(SMALL * 3, 2), SMALL * 3),
        (UNUSED_CHUNKS, CLASSES),
    ],
    "uint16": [
        (MANY, MANY),
        (png_of(CLASSES), CLASSES),
        (png_of(MANY, 16), MANY),
        (png_of(SMALL * 15, 4), SMALL * 15),
    ],
}


@pytest.mark.parametrize("dtype", STORED)
def test_stores_classes_as_a_grey_png_of_the_schemas_depth(tmp_path: Path, dtype: str) -> None:
    write_maps((value for value, _ in STORED[dtype]), tmp_path / "out", dtype)
    records = list(open_dataset(str(tmp_path / "out")).examples("train"))
    assert sorted(record["number"][0] for record in records) == list(range(len(STORED[dtype])))
    for record in records:
        (number,), (data,) = record["number"], record["map"]
        assert isinstance(number, int)
        assert isinstance(data, bytes)
        value, want = STORED[dtype][number]
        assert (data[24], data[25]) == ({"uint8": 8, "uint16": 16}[dtype], GREY)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), want)
        # A grey PNG of the schema's depth keeps its bytes.
        if isinstance(value, bytes) and value[24:26] == data[24:26]:
            assert data == value


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (b"", "uint8", "got 0 bytes that are not a PNG"),
        ("cat", "uint8", "got <U3 of shape ()"),
        (CLASSES / 2, "uint8", "got float64 of shape (2, 3)"),
        (np.zeros((2, 3, 3), np.uint8), "uint8", "got uint8 of shape (2, 3, 3)"),
        ([[1], [1, 2]], "uint8", "got object of shape ()"),
        (MANY, "uint8", "does not fit uint8 (got classes 0 to 65535, expected 0 to 255). Declare uint16"),
        (-CLASSES, "uint16", "got classes -255 to 0"),
        (np.zeros((0, 3), np.uint8), "uint8", "got shape (0, 3)"),
        (png_of(MANY, 16), "uint8", "got classes 0 to 65535"),
        (png_of(np.zeros((2, 6), int), colour=2)[:26], "uint8", "got a PNG of colours or with transparency"),
        (png_of(CLASSES)[:-20], "uint8", "does not decode: PNG cut"),
        (png_of(CLASSES).replace(b"IDAT", b"IDOT"), "uint8", "does not decode"),
        *(
            (encode(Image.new(mode, (3, 2)), file_format), "uint8", "expected a grey or palette PNG")
            for file_format, mode in (("JPEG", "L"), ("PNG", "LA"), ("GIF", "P"))
        ),
        (png_of(CLASSES[:, :2]), "uint8", "got shape (2, 2, 1), expected label_map uint8 of shape (2, 3, 1)"),
    ],
    ids=itertools.count(),
)
def test_rejects_invalid_label_maps_by_name(tmp_path: Path, value: Any, dtype: str, message: str) -> None:
    with pytest.raises(FeatureError, match=re.escape(message)) as error:
        write_maps([value], tmp_path / "out", dtype, (2, 3, 1))
    assert "Feature 'map'" in str(error.value)
