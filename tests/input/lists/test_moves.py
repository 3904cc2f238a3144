"""Boxes and points move with their image, compared with numpy; pixels encode their places, which shows the moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.label_maps import png_of
from tests.input.test_serving import serve
from tpudata import (
    CentreCrop,
    CutMix,
    Images,
    MixUp,
    Pad,
    RandAugment,
    TrainCrop,
    UsageError,
    make_input_fn,
)
from tpudata.estimator import EstimatorSpec, RunConfig, TPUEstimator, TPUEstimatorSpec
from tpudata.format import Feature

IMAGE = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
PLACES = Feature("places/encoded", "bytes", "uint16", (None, None, 1), "label_map")
CORNERS = ("ymin", "xmin", "ymax", "xmax")
BOX = [Feature(f"image/object/bbox/{corner}", "float", "float32", (None,)) for corner in CORNERS]
CLASS = Feature("image/object/class/label", "int64", "int64", (None,))
NAME = Feature("image/object/class/text", "bytes", "string", (None,))
JOINTS = [Feature(f"image/object/keypoint/{axis}", "float", "float32", (None, 3)) for axis in "yx"]
WHOLE = Feature("faces/bbox", "float", "float32", (None, 4))
EYES = [Feature(f"eyes/keypoint/{axis}", "float", "float32", (None,)) for axis in "yx"]
NUMBER = Feature("number", "int64", "int64")
FEATURES = (IMAGE, PLACES, *BOX, CLASS, NAME, *JOINTS, WHOLE, *EYES, NUMBER)
PAD: dict[str, Any] = {"image/object/*": Pad(9, -1), "faces/*": 8, "eyes/*": 8}
OUTSIDE = 65535
SIZE = 48


@dataclasses.dataclass(frozen=True)
class Scenes:
    path: str
    records: list[dict[str, Any]]
    shapes: list[tuple[int, int]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """10 pictures of several sizes, whose red is x and whose green is y."""
    rng = np.random.default_rng(11)
    records, shapes = [], []
    for number in range(10):
        height, width = 120 + 11 * number, 240 - 13 * number
        y, x = np.mgrid[:height, :width]
        count = number % 9
        ends = np.sort(rng.random((count, 2, 2)), axis=1).astype(np.float32)
        boxes = ends.reshape(count, 4)
        if count > 3:
            boxes[1], boxes[2] = (0, 0, 1, 1), (0.25, 0.25, 0.25, 0.5)
        joints, eyes = rng.random((2, count, 3), np.float32), rng.random((2, number % 4), np.float32)
        records.append(
            {
                "image/encoded": encode_image(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8)),
                "places/encoded": png_of(y * 256 + x, 16),
                **{feature.name: boxes[:, place] for place, feature in enumerate(BOX)},
                CLASS.name: rng.integers(1, 90, count),
                NAME.name: [f"{number}/{place}".encode() for place in range(count)],
                **{feature.name: joints[axis] for axis, feature in enumerate(JOINTS)},
                WHOLE.name: boxes[::-1],
                **{feature.name: eyes[axis] for axis, feature in enumerate(EYES)},
                "number": number,
            }
        )
        shapes.append((height, width))
    folder = str(tmp_path_factory.mktemp("scenes"))
    path = write_dataset(folder, {"train": records}, FEATURES, layout="scenes", shards=2)
    return Scenes(path, records, shapes)


def rows_of(scenes: Scenes, steps: int, images: Images, batch_size: int = 50, **options: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"training": True, "seed": 4, "pad": PAD, "images": images, **options}
    dataset = make_input_fn(scenes.path, "train", **arguments)({"batch_size": batch_size})
    batches = dataset.take(steps).as_numpy_iterator()
    return [{name: values[row] for name, values in batch.items()} for batch in batches for row in range(batch_size)]


def window_of(image: Any, shape: tuple[int, int]) -> tuple[int, int, int, int, bool]:
    """The window (y, x, height, width) of a picture, and whether it is mirrored, by its ramps of places."""
    first, last = SIZE // 4, 3 * SIZE // 4
    found = []
    for ramp in (image[:, SIZE // 2, 1], image[SIZE // 2, :, 0]):
        # A pixel's value is the place of its centre, less a half.
        scale = (ramp[last] - ramp[first]) / (last - first)
        begin = ramp[first] + 0.5 - scale * (first + 0.5)
        found.append((begin + SIZE * min(scale, 0), abs(scale) * SIZE, scale < 0))
    (top, height, _), (left, width, flip) = found
    numbers = [round(float(value)) for value in (top, left, height, width)]
    np.testing.assert_allclose(numbers, (top, left, height, width), atol=0.02)
    assert 0 <= numbers[0] <= numbers[0] + numbers[2] <= shape[0]
    assert 0 <= numbers[1] <= numbers[1] + numbers[3] <= shape[1]
    return (*numbers, bool(flip))  # type: ignore[return-value]


def crop(
    window: tuple[int, int, int, int, bool], shape: tuple[int, int]
) -> Callable[[float, float], tuple[float, float]]:
    """The function from a place (y, x) of a picture to that of its crop."""
    top, left, height, width, flip = window

    def moved(y: float, x: float) -> tuple[float, float]:
        y, x = (y * shape[0] - top) / height, (x * shape[1] - left) / width
        return y, 1 - x if flip else x

    return moved


def move_box(box: Any, moved: Callable[[float, float], tuple[float, float]]) -> tuple[list[float], float]:
    """The box around the moved corners, clipped, and the share of its area that is left."""
    corners = [moved(y, x) for y in (box[0], box[2]) for x in (box[1], box[3])]
    ys, xs = [y for y, _ in corners], [x for _, x in corners]
    sides = [min(ys), min(xs), max(ys), max(xs)]
    clipped = [min(max(side, 0.0), 1.0) for side in sides]
    area, left = ((b[2] - b[0]) * (b[3] - b[1]) for b in (sides, clipped))
    is_line = min(clipped[2] - clipped[0], clipped[3] - clipped[1]) < 1e-5
    return clipped, 0.0 if is_line else left / area


def check_row(row: dict[str, Any], record: dict[str, Any], moved: Any, least: float = 0.0, atol: float = 1e-5) -> int:
    """Compare a row with a plain loop over its record; return the number of dropped boxes."""
    stored = np.stack([record[feature.name] for feature in BOX], axis=1)
    dropped = 0
    for boxes, length, fill, count, columns in (
        (stored, 9, -1, row["image/object/count"], np.stack([row[f.name] for f in BOX], axis=1)),
        (stored[::-1], 8, 0, row["faces/count"], row[WHOLE.name]),
    ):
        is_faces = length == 8
        place = 0
        for entry, box in enumerate(boxes):
            want, share = move_box(box, moved)
            if abs(share - least) < 0.01 and least:
                return 0  # Too close to call.
            if share <= 0 or share < least:
                dropped += 1
                continue
            np.testing.assert_allclose(columns[place], want, atol=atol)
            if not is_faces:
                assert row[CLASS.name][place] == record[CLASS.name][entry]
                assert row[NAME.name][place] == record[NAME.name][entry]
                for joint in range(3):
                    point = moved(*(record[feature.name][entry][joint] for feature in JOINTS))
                    np.testing.assert_allclose([row[f.name][place][joint] for f in JOINTS], point, atol=atol)
            place += 1
        assert count == place
        assert (columns[place:] == fill).all()
    assert (row[CLASS.name][row["image/object/count"] :] == -1).all()
    assert set(row[NAME.name][row["image/object/count"] :].tolist()) <= {b""}
    for place, eye in enumerate(zip(*(record[feature.name] for feature in EYES), strict=True)):
        np.testing.assert_allclose([row[feature.name][place] for feature in EYES], moved(*eye), atol=atol)
    assert row["eyes/count"] == len(record[EYES[0].name])
    assert all((row[feature.name][row["eyes/count"] :] == 0).all() for feature in EYES)
    return dropped


def test_crops_and_flips_move_boxes_and_points(scenes: Scenes) -> None:
    flips, dropped, windows = set(), 0, set()
    for area, least, steps in (((0.08, 1.0), 0.0, 10), ((0.3, 0.6), 0.3, 10)):
        images = Images(crop=TrainCrop(SIZE, area=area), dtype="float32", least_visible=least)
        for row in rows_of(scenes, steps, images):
            number = int(row["number"])
            window = window_of(row["image"] * 255, scenes.shapes[number])
            flips.add(window[4])
            windows.add(window)
            dropped += check_row(row, scenes.records[number], crop(window, scenes.shapes[number]), least)
    assert flips == {False, True}
    assert len(windows) > 900
    assert dropped > 300


def test_the_centre_crop_moves_boxes_and_points(scenes: Scenes, tmp_path: Path) -> None:
    for cache in (False, tmp_path, tmp_path):
        images = Images(crop=CentreCrop(SIZE), dtype="float32")
        rows = rows_of(scenes, 1, images, 10, training=False, seed=None, cache=cache)
        for row, record, shape in zip(rows, scenes.records, scenes.shapes, strict=True):
            window = window_of(row["image"] * 255, shape)
            check_row(row, record, crop(window, shape))


def test_resizing_keeps_relative_positions(scenes: Scenes) -> None:
    images = Images(size=(SIZE, 31), transpose="HWCN")
    dataset = make_input_fn(scenes.path, "train", training=False, pad=PAD, images=images)({"batch_size": 10})
    (batch,) = dataset.as_numpy_iterator()
    for row, record in enumerate(scenes.records):
        np.testing.assert_array_equal(batch[WHOLE.name][row][: len(record[WHOLE.name])], record[WHOLE.name])
        # A box without area is kept.
        assert batch["image/object/count"][row] == len(record[CLASS.name])


def affine_of(places: Any, shape: tuple[int, int]) -> Any:
    """The function from a place of a picture to that of its result, fitted to a map of the pixels' places; None if hidden."""
    y, x = np.nonzero(places != OUTSIDE)
    if len(y) < 300:
        return None
    source = np.stack([places[y, x] // 256 + 0.5, places[y, x] % 256 + 0.5], axis=1) / shape
    target = np.stack([y + 0.5, x + 0.5], axis=1) / places.shape
    terms = np.concatenate([target, np.ones((len(y), 1))], axis=1)
    fitted, *_ = np.linalg.lstsq(terms, source, rcond=None)
    inverse = np.linalg.inv(fitted[:2].T)
    return lambda y, x: tuple(inverse @ (np.array([y, x]) - fitted[2]))


def test_augmentation_moves_boxes_and_points(scenes: Scenes) -> None:
    # Large results, so that the fit to whole pixels is good.
    images = Images(size=(250, 250), augment=RandAugment(1, map_fill=OUTSIDE))
    moved_rows = dropped = 0
    for row in rows_of(scenes, 12, images, 20):
        number = int(row["number"])
        places = row["places"][..., 0]
        moved = affine_of(places, scenes.shapes[number])
        assert moved is not None
        dropped += check_row(row, scenes.records[number], moved, atol=0.006) if (places == OUTSIDE).any() else 0
        moved_rows += bool((places == OUTSIDE).any())
    assert moved_rows > 50


def test_boxes_and_points_follow_a_crop_and_then_augmentation(scenes: Scenes) -> None:
    images = Images(crop=TrainCrop(240, area=(0.5, 1.0), shrink=False), augment=RandAugment(2, map_fill=OUTSIDE))
    compared = 0
    for row in rows_of(scenes, 10, images, 20):
        number = int(row["number"])
        record, moved = scenes.records[number], affine_of(row["places"][..., 0], scenes.shapes[number])
        if moved is None:
            continue
        for place, eye in enumerate(zip(*(record[feature.name] for feature in EYES), strict=True)):
            got = [row[feature.name][place] for feature in EYES]
            np.testing.assert_allclose(got, moved(*eye), atol=0.015)
            compared += 1
        boxes = np.stack([row[f.name] for f in BOX], axis=1)[: row["image/object/count"]]
        assert ((boxes >= 0) & (boxes <= 1)).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert compared > 100


def test_boxes_do_not_depend_on_hosts_and_restarts(scenes: Scenes) -> None:
    images = Images(crop=TrainCrop(16), augment=RandAugment(1, map_fill=OUTSIDE))
    input_fn = make_input_fn(scenes.path, "train", training=True, seed=1, pad=PAD, images=images)
    want = list(input_fn({"batch_size": 4}).take(4).as_numpy_iterator())
    # The second host shows a difference: the first host's rows begin with the same number.
    later = input_fn({"batch_size": 4}, start_step=2, host_index=1, host_count=2).take(2).as_numpy_iterator()
    for got, expected in zip(later, want[2:], strict=True):
        for name, values in expected.items():
            np.testing.assert_array_equal(got[name], values[2:])


def test_transform_gets_moved_boxes(scenes: Scenes) -> None:
    def corner(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"image": features["image"], "number": features["number"], "first": features[WHOLE.name][0]}

    images = Images(crop=TrainCrop(SIZE), dtype="float32")
    plain = rows_of(scenes, 1, images, 20)
    for row, want in zip(rows_of(scenes, 1, images, 20, transform=corner), plain, strict=True):
        np.testing.assert_array_equal(row["first"], want[WHOLE.name][0])


def test_serving_moves_boxes_as_evaluation_does(scenes: Scenes) -> None:
    images = Images(crop=CentreCrop(SIZE))
    (row, *_) = rows_of(scenes, 1, images, 10, training=False, seed=None)
    shard = sorted(Path(scenes.path).glob("train-*"))[0]
    record = next(iter(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()))
    found = serve(scenes.path, [record], images, pad=PAD)
    assert found.keys() == row.keys() - {"weights"}
    for name, values in found.items():
        np.testing.assert_array_equal(values[0], row[name])


def test_an_estimator_trains_on_boxes(scenes: Scenes, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec | TPUEstimatorSpec:
        del labels, params
        flat = tf.reshape(features["image"], [-1, 16 * 16 * 3])
        weights = tf.compat.v1.get_variable("weights", [16 * 16 * 3, 9 * 4])
        boxes = tf.reshape(tf.matmul(flat, weights), [-1, 9, 4])
        real = tf.sequence_mask(features["image/object/count"], 9, tf.float32)
        wanted = tf.stack([features[feature.name] for feature in BOX], axis=-1)
        loss = tf.reduce_mean(real[..., None] * tf.square(boxes - wanted))
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    input_fn = make_input_fn(
        scenes.path,
        "train",
        training=True,
        seed=1,
        pad=PAD,
        images=Images(crop=TrainCrop(16), dtype="float32"),
        transform=lambda features: {
            name: features[name] for name in ("image", "image/object/count", *(feature.name for feature in BOX))
        },
    )
    config = RunConfig(model_dir=str(tmp_path))
    estimator = TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=4)
    estimator.train(input_fn, max_steps=3)
    assert estimator.get_variable_value("global_step") == 3


OBJECTS = {"faces/*": 8, "eyes/*": 8}


@pytest.mark.parametrize(
    ("pad", "images", "message"),
    [
        (PAD, Images(size=(8, 8), mix=MixUp()), "mix: the boxes, points and masks of two images"),
        (PAD, Images(size=(8, 8), mix=CutMix()), "mix: the boxes, points and masks of two images"),
        (
            {**OBJECTS, "image/object/c*": 9, "image/object/k*": 9, **{feature.name: 9 for feature in BOX}},
            Images(crop=TrainCrop(8)),
            "crop: the boxes 'image/object/bbox' move .* ymin, xmin, ymax, xmax .*pad={'image/object/.': N}",
        ),
        (
            {**OBJECTS, "image/object/[bc]*": 9, "*t/keypoint/y": 9, "*t/keypoint/x": 9},
            Images(size=(8, 8), augment=RandAugment()),
            "augment: the points 'image/object/keypoint' move .* y, x of one shape .*pad={'image/object/.': N}",
        ),
        (
            {"*a*": 9, "eyes/*": 9},
            Images(crop=TrainCrop(8)),
            "two kinds of boxes, 'image/object/bbox' and 'faces/bbox'",
        ),
        (PAD, Images(size=(8, 8), least_visible=0.5), "least_visible=0.5: it is for boxes that move"),
    ],
)
def test_rejects_boxes_and_points_that_cannot_move(scenes: Scenes, pad: Any, images: Images, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_input_fn(scenes.path, "train", training=True, pad=pad, images=images)


@pytest.mark.parametrize(
    ("feature", "pad", "message"),
    [
        (Feature("bbox", "float", "float32", (4,)), {}, "crop: the boxes 'bbox' .*pad={'bbox': N}"),
        (Feature("a/bbox", "int64", "int64", (None, 4)), {"a/*": 3}, "the boxes 'a/bbox' are int32 .*float32, shares"),
        (Feature("a/bbox/ymin", "float", "float32", (None,)), {"a/*": 3}, "the boxes 'a/bbox' .*got a/bbox/ymin"),
    ],
)
def test_rejects_columns_that_would_not_move(feature: Feature, pad: Any, message: str, tmp_path: Path) -> None:
    image = encode_image(np.zeros((8, 8, 3), np.uint8))
    path = write_dataset(str(tmp_path), {"train": [{"image/encoded": image}]}, (IMAGE, feature), layout="a", shards=1)
    with pytest.raises(UsageError, match=message):
        make_input_fn(path, "train", training=True, pad=pad, images=Images(crop=TrainCrop(8)))


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "all"])
def test_rejects_least_visible_outside_0_to_1(share: Any) -> None:
    with pytest.raises(UsageError, match="least_visible: invalid value"):
        Images(least_visible=share)
