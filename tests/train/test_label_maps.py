"""Training on label maps: from pictures and their masks to classes of pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.label_maps import png_of
from tests.train.jobs import read_json, train_job
from tpudata.cli import main
from tpudata.format import Feature

MAP = "image/segmentation/class/encoded"
FEATURES = [
    Feature("image/encoded", "bytes", "uint8", (16, 16, 1), "image"),
    Feature(MAP, "bytes", "uint8", (None, None, 1), "label_map"),
]
SMALL = ["--param=depth=2", "--param=filters=8", "--param=learning_rate=0.01"]
SIZE = "--image-size=16x16"


def shapes(count: int, top: int = 2, seed: int = 0) -> list[dict[str, Any]]:
    """Grey noise with a bright and a dark rectangle, whose classes are 1 and `top`; one row of pixels is ignored."""
    rng = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        pixels, classes = rng.integers(90, 150, size=(16, 16, 1)), np.zeros((16, 16), int)
        for kind, value in ((1, 200), (top, 40)):
            y, x = rng.integers(0, 10, size=2)
            pixels[y : y + 6, x : x + 6], classes[y : y + 6, x : x + 6] = value, kind
        classes[rng.integers(16)] = 255
        records.append({"image/encoded": encode_image(pixels.astype(np.uint8)), MAP: png_of(classes)})
    return records


def write(folder: Path, features: list[Feature] = FEATURES, layout: str = "imagenet", **options: Any) -> Path:
    splits = {"train": shapes(48, **options), "validation": shapes(12, seed=1)}
    for records in splits.values():
        for record in records:
            record |= {feature.name: [1] for feature in features if feature not in FEATURES}
    return Path(write_dataset(str(folder), splits, features, layout=layout, shards=1, classes=3))


def unet(data: Path, folder: Path, *flags: str) -> int:
    size = [] if any(flag.startswith("--crop") for flag in flags) else [SIZE]
    return train_job(data, folder, "--param=num_classes=3", *SMALL, *size, *flags, model="unet")


# With and without classes of whole pictures, and as the features of another layout.
LABEL = Feature("image/class/label", "int64", "int64", num_classes=3)


def assert_predicts_and_exports(data: Path, model: Path) -> None:
    """Check the metric of a trained model, and two of its outputs."""
    # Nothing but background has a mean IoU of less than a third.
    assert read_json(model / "evaluation.json")["mean_iou"] > 0.6
    assert unet(data, model, "--mode=predict", "--num-predictions=2", "--batch-size=8") == 0
    lines = [json.loads(line) for line in (model / "predictions.jsonl").read_text().splitlines()]
    assert np.array([line["predictions"]["classes"] for line in lines]).shape == (2, 16, 16)
    assert unet(data, model, "--mode=export", "--batch-size=8") == 0
    (exported,) = (model / "export").iterdir()
    signature = tf.saved_model.load(str(exported)).signatures["serving_default"]
    given = signature(image=tf.zeros([1, 16, 16, 1], tf.uint8))
    assert given["classes"].shape == (1, 16, 16)


@pytest.mark.matrix
@pytest.mark.parametrize(("features", "layout"), [([*FEATURES, LABEL], "imagenet"), (FEATURES, "examples")])
def test_trains_on_maps_of_any_layout(tmp_path: Path, features: list[Feature], layout: str) -> None:
    data, model = write(tmp_path / "data", features, layout), tmp_path / "model"
    assert unet(data, model, "--train-steps=60", "--batch-size=8") == 0
    assert_predicts_and_exports(data, model)


def test_trains_on_crops_of_pictures_and_maps(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    assert unet(data, tmp_path / "model", "--train-steps=2", "--batch-size=8", "--crop=8") == 0


def test_commands_learn_and_predict_from_pictures_and_masks(tmp_path: Path) -> None:
    for number, record in enumerate(shapes(40)):
        for folder, name in (("pictures", "image/encoded"), ("masks", MAP)):
            path = tmp_path / folder / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(record[name])
    source = [f"--input={tmp_path}/pictures", f"--masks={tmp_path}/masks", "--split=train=0.8,validation=0.2"]
    assert main(["convert", "images", *source, f"--output={tmp_path}/data"]) == 0
    assert unet(tmp_path / "data", tmp_path / "model", "--train-steps=60", "--batch-size=8", "--mode=train") == 0
    assert unet(tmp_path / "data", tmp_path / "model", "--mode=eval", "--batch-size=8") == 0
    assert_predicts_and_exports(tmp_path / "data", tmp_path / "model")


def test_takes_the_number_of_classes_from_object_labels(tmp_path: Path) -> None:
    label = Feature("image/object/class/label", "int64", "int64", (None,), num_classes=3)
    data = write(tmp_path / "data", [*FEATURES, label])
    assert train_job(data, tmp_path / "model", *SMALL, SIZE, "--train-steps=1", "--mode=train", model="unet") == 0
    params = read_json(tmp_path / "model" / "train_config.json")["params"]
    assert (params["num_classes"], params["ignored_label"]) == (3, 255)


def test_rejects_missing_maps_and_unknown_or_too_few_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(folder: str, *flags: str, **options: Any) -> str:
        data = write(tmp_path / folder, **options)
        assert train_job(data, tmp_path / "model", SIZE, "--train-steps=4", "--mode=train", *flags, model="unet") > 0
        return capsys.readouterr().err.splitlines()[-1]

    assert "does not say how many classes image/segmentation/class/encoded has. Pass --param num_classes=N" in error(
        "a"
    )
    few = error("b", "--param=num_classes=3", *SMALL, top=7)
    assert "a value does not fit unet with num_classes=3 and ignored_label=255 (got 7 in " in few
    assert "has none (got image/encoded). Use another model" in error("c", features=FEATURES[:1])
