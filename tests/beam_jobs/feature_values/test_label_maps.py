"""Label maps of a user's examples: what is stored, as Pillow reads it, and what is rejected.

One bad map ends a pipeline, so tests call the rules directly: a pipeline for each map would take a second.
"""

from __future__ import annotations

import io
import itertools
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_jobs.examples.rules import ExampleRules
from tests.helpers.label_maps import GREY, PALETTE, png_of
from tpudata.errors import FeatureError
from tpudata.format import Feature, decode_example

SMALL = np.array([[0, 1, 1], [1, 0, 1]])
CLASSES = np.array([[0, 1, 20], [7, 255, 13]])
MANY = np.array([[0, 256, 65535], [7, 255, 300]])


def stored(value: Any, dtype: str = "uint8", shape: tuple[int | None, ...] = (None, None, 1)) -> bytes:
    """The bytes of a map in the record of an example."""
    schema = (Feature("map", "bytes", dtype, shape, "label_map"),)
    rules = ExampleRules(key=None, split_of=None, schema=schema, label="label", classes=None)
    data, _ = rules.encode({"map": value}, "here")
    (found,) = decode_example(data)["map"]
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (CLASSES, "uint8", CLASSES),
        (CLASSES.astype(np.uint8)[..., None], "uint8", CLASSES),
        (CLASSES.tolist(), "uint8", CLASSES),
        (SMALL.astype(bool), "uint8", SMALL),
        (MANY, "uint16", MANY),
        (png_of(CLASSES, 8, PALETTE), "uint8", CLASSES),
        (png_of(CLASSES, 16), "uint8", CLASSES),
        (png_of(CLASSES), "uint16", CLASSES),
        (png_of(MANY, 16), "uint16", MANY),
        *((png_of(SMALL, bits, colour), "uint8", SMALL) for bits in (1, 2, 4) for colour in (GREY, PALETTE)),
        (png_of(SMALL * 3, 2), "uint8", SMALL * 3),
        (png_of(SMALL * 15, 4), "uint16", SMALL * 15),
    ],
    ids=itertools.count(),
)
def test_stores_classes_as_a_grey_png_of_the_schemas_depth(value: Any, dtype: str, want: Any) -> None:
    data = stored(value, dtype)
    assert (data[24], data[25]) == ({"uint8": 8, "uint16": 16}[dtype], GREY)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), want)


def test_keeps_the_bytes_of_a_png_that_readers_do_not_change() -> None:
    for data, dtype in (
        (png_of(CLASSES, chunks=[(b"tRNS", b"\0\x14"), (b"gAMA", b"\0\0\xb1\x8f")]), "uint8"),
        (png_of(MANY, 16), "uint16"),
    ):
        assert stored(data, dtype) == data


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
        (png_of(CLASSES[:, :2]), "uint8", "got shape (2, 2, 1), expected label_map uint8 of shape (2, 3, 1)"),
    ],
    ids=itertools.count(),
)
def test_rejects_invalid_label_maps_by_name(value: Any, dtype: str, message: str) -> None:
    with pytest.raises(FeatureError, match=re.escape(message)) as error:
        stored(value, dtype, (2, 3, 1))
    assert "Feature 'map'" in str(error.value)


def test_rejects_jpegs_and_pictures() -> None:
    for file_format, mode in (("JPEG", "L"), ("PNG", "RGB"), ("PNG", "LA"), ("GIF", "P")):
        file = io.BytesIO()
        Image.new(mode, (3, 2)).save(file, file_format)
        with pytest.raises(FeatureError, match="expected a grey or palette PNG"):
            stored(file.getvalue())
