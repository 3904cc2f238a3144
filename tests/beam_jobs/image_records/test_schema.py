"""The schema of a dataset of images: static where all images agree, and with labels where there are classes."""

from __future__ import annotations

import pytest

from beam_jobs.image_records.layouts import LAYOUTS
from beam_jobs.image_records.options import IMAGENET, RAW
from beam_jobs.image_records.schema import image_schema
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from tpudata.errors import SourceError
from tpudata.format import Feature

EXTRA = (Feature("taken", "float", "float32"),)


def counted(*shapes: tuple[int, int, int]) -> ImageSummary:
    summary = ImageSummary()
    for number, shape in enumerate(shapes):
        summary.add(shape, f"{number}.jpg")
    return summary


def schema(
    layout: str, summary: ImageSummary, *names: str, several: bool = False, offset: int = 0
) -> dict[str, Feature]:
    features = image_schema(
        LAYOUTS[layout], summary, Labels(names), several_labels=several, label_offset=offset, extra=EXTRA
    )
    assert features[-1:] == EXTRA
    return {feature.name: feature for feature in features}


def test_a_side_that_all_images_have_is_static() -> None:
    for shapes, due in [
        ([(4, 5, 3), (4, 5, 3)], (4, 5, 3)),
        ([(4, 5, 3), (4, 6, 3)], (4, None, 3)),
        ([(4, 5, 1), (3, 5, 1)], (None, 5, 1)),
        # As many channels as any has: readers make the others as wide.
        ([(4, 5, 1), (4, 5, 3)], (4, 5, 3)),
        ([], (None, None, 3)),
    ]:
        assert schema(IMAGENET, counted(*shapes))["image/encoded"].shape == due


def test_labels_are_there_where_classes_are() -> None:
    assert not [name for name in schema(IMAGENET, counted()) if "class" in name]
    assert set(schema(RAW, counted((4, 5, 3)))) == {"image_raw", "taken"}
    labelled = schema(IMAGENET, counted(), "cat", "dog", offset=1)
    assert labelled["image/class/label"] == Feature(
        "image/class/label", "int64", "int64", num_classes=2, label_offset=1
    )
    assert labelled["image/class/text"].shape == ()
    assert schema(RAW, counted((4, 5, 3)), "cat")["label"] == Feature("label", "int64", "int64", num_classes=1)
    several = schema(IMAGENET, counted(), "cat", "dog", several=True, offset=1)
    assert several["image/class/label"] == Feature("image/class/label", "int64", "int64", (None,))
    assert several["image/class/text"].shape == (None,)


def test_layout_raw_wants_one_size() -> None:
    match = r"1\.jpg is 4 x 6 x 3 \(height, width, channels\), but 0\.jpg is 4 x 5 x 3\..*--layout imagenet"
    with pytest.raises(SourceError, match=match):
        schema(RAW, counted((4, 5, 3), (4, 6, 3)))
