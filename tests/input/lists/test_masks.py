"""Masks of objects, decoded, padded and moved with their image, compared with numpy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.label_maps import png_of
from tests.input.lists.test_moves import BOX, CLASS, IMAGE, OUTSIDE, PLACES, SIZE, window_of
from tests.input.test_serving import serve
from tpudata import (
    CentreCrop,
    FeatureError,
    Images,
    MixUp,
    Pad,
    RandAugment,
    TrainCrop,
    UsageError,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature

MASK = "image/object/mask"
FEATURES = (IMAGE, PLACES, *BOX, CLASS, Feature(MASK, "bytes", "string", (None,)))
PAD = {"image/object/*": 5}
# Bits a pixel, and the value of pixels inside.
KINDS = ((8, 1), (8, 255), (1, 1), (16, 1))


@dataclasses.dataclass(frozen=True)
class Shapes:
    path: str
    masks: dict[int, Any]
    counts: list[int]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """8 pictures of several sizes, whose red is x and whose green is y; each object is an ellipse in its box."""
    rng = np.random.default_rng(3)
    records, masks, counts = [], {}, []
    for number in range(8):
        height, width, count = 90 + 7 * number, 150 - 9 * number, number % 6
        y, x = np.mgrid[:height, :width]
        ends = np.sort(rng.random((count, 2, 2)), axis=1).astype(np.float32).reshape(count, 4)
        data = []
        for place, (top, left, bottom, right) in enumerate(ends.tolist()):
            down = ((y + 0.5) / height * 2 - top - bottom) / (bottom - top)
            across = ((x + 0.5) / width * 2 - left - right) / (right - left)
            mask = (down**2 + across**2 < 1).astype(np.uint8)
            bits, inside = KINDS[place % len(KINDS)]
            data.append(png_of(mask.astype(int) * inside, bits))
            masks[10 * number + place] = mask
        records.append(
            {
                "image/encoded": encode_image(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8)),
                "places/encoded": png_of(y * 256 + x, 16),
                **{feature.name: ends[:, place] for place, feature in enumerate(BOX)},
                CLASS.name: np.arange(count) + 10 * number,
                MASK: data,
            }
        )
        counts.append(count)
    folder = str(tmp_path_factory.mktemp("shapes"))
    return Shapes(write_dataset(folder, {"train": records}, FEATURES, layout="scenes", shards=2), masks, counts)


def batches(shapes: Shapes, steps: int, images: Images, batch_size: int = 40, **options: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"training": True, "seed": 4, "pad": PAD, "images": images, **options}
    dataset = make_input_fn(shapes.path, "train", **arguments)({"batch_size": batch_size})
    assert dataset.element_spec[MASK].shape == (batch_size, 5, *dataset.element_spec["image"].shape[1:3])
    return list(dataset.take(steps).as_numpy_iterator())


def rows_of(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [
        {name: values[row] for name, values in batch.items()}
        for batch in batches(*arguments, **options)
        for row in range(len(batch[MASK]))
    ]


def check_padding(row: dict[str, Any]) -> None:
    assert row[MASK].dtype == np.uint8
    assert not row[MASK][row["image/object/count"] :].any()


def test_masks_follow_crops_and_flips(shapes: Shapes) -> None:
    images = Images(crop=TrainCrop(SIZE, area=(0.2, 0.8)), dtype="float32", least_visible=0.4)
    flips, compared, dropped = set(), 0, 0
    for row in rows_of(shapes, 25, images):
        check_padding(row)
        for place in range(row["image/object/count"]):
            number = int(row[CLASS.name][place])
            mask = shapes.masks[number]
            top, left, height, width, flip = window_of(row["image"] * 255, mask.shape)
            part = mask[top : top + height, left : left + width]
            want = (part[:, ::-1] if flip else part)[
                np.floor((np.arange(SIZE) + 0.5) * height / SIZE).astype(int)[:, None],
                np.floor((np.arange(SIZE) + 0.5) * width / SIZE).astype(int)[None],
            ]
            # TensorFlow computes the places in float32: a pixel on an edge may go either way.
            assert (row[MASK][place] != want).mean() < 0.01
            flips.add(flip)
            compared += 1
            dropped += shapes.counts[number // 10] - int(row["image/object/count"])
    assert flips == {False, True}
    assert compared > 1000
    assert dropped > 100


@pytest.mark.parametrize("crop", [None, pytest.param(TrainCrop(40), marks=pytest.mark.matrix)])
def test_masks_follow_augmentation(shapes: Shapes, crop: TrainCrop | None) -> None:
    size = None if crop else (40, 56)
    images = Images(size=size, crop=crop, augment=RandAugment(2, map_fill=OUTSIDE))
    compared = 0
    for row in rows_of(shapes, 3, images):
        check_padding(row)
        places = row["places"][..., 0]
        is_inside = places != OUTSIDE
        for place in range(row["image/object/count"]):
            mask = shapes.masks[int(row[CLASS.name][place])]
            want = np.where(is_inside, mask[places * is_inside // 256, places * is_inside % 256], 0)
            np.testing.assert_array_equal(row[MASK][place], want)
            compared += 1
    assert compared > 100


def test_masks_can_be_resized_cached_and_cut(shapes: Shapes, tmp_path: Path) -> None:
    images = Images(size=(30, 44))
    for options in ({}, {"cache": tmp_path}, {"transform": lambda features: features}):
        rows = rows_of(shapes, 1, images, 8, training=False, seed=None, **options)
        for row, count in zip(rows, shapes.counts, strict=True):
            check_padding(row)
            assert row["image/object/count"] == count
            for place in range(count):
                mask, places = shapes.masks[int(row[CLASS.name][place])], row["places"][..., 0]
                np.testing.assert_array_equal(row[MASK][place], mask[places // 256, places % 256])
    dataset = make_input_fn(
        shapes.path, "train", training=False, pad={"image/object/*": Pad(2, cut=True)}, images=images
    )({"batch_size": 8})
    (batch,) = dataset.as_numpy_iterator()
    np.testing.assert_array_equal(batch[MASK], np.stack([row[MASK][:2] for row in rows]))
    assert batch["image/object/count"].tolist() == [min(count, 2) for count in shapes.counts]


def test_serving_decodes_masks_as_evaluation_does(shapes: Shapes) -> None:
    images = Images(crop=CentreCrop(24))
    (batch,) = batches(shapes, 1, images, 8, training=False, seed=None)
    shard = sorted(Path(shapes.path).glob("train-*"))[0]
    records = list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator())
    found = serve(shapes.path, records, images, pad=PAD)
    np.testing.assert_array_equal(found[MASK], batch[MASK][: len(records)])


def test_rejects_masks_that_cannot_move(shapes: Shapes) -> None:
    crop = Images(crop=CentreCrop(8))
    apart = {"image/object/[bc]*": 5, MASK: 5}
    with pytest.raises(UsageError, match=r"crop: the masks 'image/object/mask' are in another table of pad"):
        make_input_fn(shapes.path, "train", training=False, pad=apart, images=crop)
    with pytest.raises(UsageError, match="mix: the boxes, points and masks of two images"):
        make_input_fn(shapes.path, "train", training=True, pad=PAD, images=Images(size=(8, 8), mix=MixUp()))
    with pytest.raises(FeatureError, match="masks cannot be the label"):
        make_input_fn(shapes.path, "train", training=False, pad=apart, label=MASK, images=Images(size=(8, 8)))


def test_suggests_one_table_for_masks_and_boxes_without_a_prefix(tmp_path: Path) -> None:
    image = encode_image(np.zeros((8, 8, 3), np.uint8))
    record = {
        "image/encoded": image,
        "bbox": np.array([[0, 0, 1, 1]], np.float32),
        "mask": [png_of(np.ones((8, 8), int))],
    }
    features = (IMAGE, Feature("bbox", "float", "float32", (None, 4)), Feature("mask", "bytes", "string", (None,)))
    path = write_dataset(str(tmp_path), {"train": [record]}, features, layout="scenes", shards=1)
    crop = Images(crop=CentreCrop(8))
    with pytest.raises(UsageError, match=r"the masks 'mask' are in another table .* Pass pad=\{'\*': N\} for both"):
        make_input_fn(path, "train", training=False, pad={"bbox": 2, "mask": 2}, images=crop)
    (row,) = as_numpy(make_input_fn(path, "train", training=False, pad={"*": 2}, images=crop), 1)
    assert row["bbox"].shape == (1, 2, 4)
    assert row["mask"].shape == (1, 2, 8, 8)


@pytest.mark.parametrize("images", [Images(crop=CentreCrop(8)), Images()])
def test_rejects_a_mask_of_another_size(images: Images, tmp_path: Path) -> None:
    image = encode_image(np.zeros((8, 8, 3), np.uint8))
    record = {"image/encoded": image, MASK: [png_of(np.ones((8, 9), int))]}
    features = (dataclasses.replace(IMAGE, shape=(8, 8, 3)), Feature(MASK, "bytes", "string", (None,)))
    path = write_dataset(str(tmp_path), {"train": [record]}, features, layout="scenes", shards=1)
    input_fn = make_input_fn(path, "train", training=False, pad={MASK: 2}, images=images)
    with pytest.raises(FeatureError, match="a mask does not have the size of its image"):
        list(as_numpy(input_fn, 1))
