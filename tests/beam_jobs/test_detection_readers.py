"""The readers of TensorFlow's object detection get from a dataset what pycocotools reads from the annotations.

The features and their defaults are those of the decoders in tf-models (official/vision/dataloaders/tf_example_decoder.py) and in
tensorflow/tpu (models/official/detection/dataloader and efficientdet). scripts/conformance runs that of tf-models itself.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.images import run
from tests.beam_jobs.images import encode, picture

coco_tools = pytest.importorskip("pycocotools.coco")

SPEC = {
    "image/encoded": tf.io.FixedLenFeature((), tf.string),
    "image/source_id": tf.io.FixedLenFeature((), tf.string, ""),
    "image/height": tf.io.FixedLenFeature((), tf.int64, -1),
    "image/width": tf.io.FixedLenFeature((), tf.int64, -1),
    **{f"image/object/bbox/{edge}": tf.io.VarLenFeature(tf.float32) for edge in ("xmin", "xmax", "ymin", "ymax")},
    "image/object/class/label": tf.io.VarLenFeature(tf.int64),
    "image/object/area": tf.io.VarLenFeature(tf.float32),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
    "image/object/mask": tf.io.VarLenFeature(tf.string),
}


def decode(serialized: tf.Tensor) -> dict[str, Any]:
    """What a detector gets of a record: boxes in fractions, and a mask for each object."""
    found = tf.io.parse_single_example(serialized, SPEC)
    found = {
        name: tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
        for name, value in found.items()
    }
    boxes = tf.stack([found[f"image/object/bbox/{edge}"] for edge in ("ymin", "xmin", "ymax", "xmax")], axis=-1)
    height, width = found["image/height"], found["image/width"]
    masks = [tf.io.decode_png(data, channels=1).numpy()[..., 0] for data in found["image/object/mask"]]
    return {
        "image": tf.io.decode_image(found["image/encoded"], channels=3),
        "size": (int(height), int(width)),
        "boxes": boxes.numpy(),
        "classes": found["image/object/class/label"].numpy(),
        "id": found["image/source_id"].numpy(),
        "area": found["image/object/area"].numpy(),
        "is_crowd": found["image/object/is_crowd"].numpy(),
        "masks": masks,
    }


def write_coco(root: Path) -> Path:
    """Twelve pictures of several sizes with polygons, crowds as run lengths, and none."""
    choose = random.Random(3)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (root / "images").mkdir(parents=True)
    for number in range(12):
        height, width = 30 + number, 50 - number
        (root / "images" / f"{number:012d}.jpg").write_bytes(encode(picture(height, width), "JPEG"))
        images.append({"id": number, "file_name": f"{number:012d}.jpg", "height": height, "width": width})
        for _ in range(number % 4):
            x, y = choose.uniform(0, width / 2), choose.uniform(0, height / 2)
            w, h = choose.uniform(2, width / 2 - 1), choose.uniform(2, height / 2 - 1)
            is_crowd = choose.random() < 0.3
            polygon = [x, y, x + w, y, x + w, y + h, x + w / 2, y + h / 2, x, y + h]
            lengths = {"size": [height, width], "counts": [height * 3 + 2, 9, height * (width - 3) - 11]}
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": choose.choice([3, 17, 90]),
                    "bbox": [x, y, w, h],
                    "area": w * h * 0.75,
                    "iscrowd": int(is_crowd),
                    "segmentation": lengths if is_crowd else [polygon],
                }
            )
    categories = [{"id": 3, "name": "car"}, {"id": 17, "name": "cat"}, {"id": 90, "name": "brush"}]
    path = root / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


# pycocotools 2.0 with NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_detection_decoders_read_the_values_of_pycocotools(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    flags = ["--label-offset=1", "--unannotated=empty", "--num-shards=2"]
    assert (
        run(
            ["--input", str(tmp_path / "images"), "--annotations", str(path), "--output", str(tmp_path / "out"), *flags]
        )
        == 0
    )
    coco = coco_tools.COCO(str(path))
    # Label 0 is background; classes are in the order of the file's numbers.
    numbers = {category: label for label, category in enumerate(sorted(coco.cats), 1)}
    by_size = {(image["height"], image["width"]): image["id"] for image in coco.imgs.values()}
    files = sorted(str(file) for file in (tmp_path / "out").glob("train-*"))
    read = list(map(decode, tf.data.TFRecordDataset(files)))
    assert len(read) == len(coco.imgs)
    for one in read:
        height, width = one["size"]
        assert one["image"].shape[:2] == (height, width)
        assert one["id"] == str(by_size[height, width]).encode()
        rows = coco.loadAnns(coco.getAnnIds(by_size[height, width]))
        assert one["classes"].tolist() == [numbers[row["category_id"]] for row in rows]
        assert one["is_crowd"].tolist() == [row["iscrowd"] for row in rows]
        np.testing.assert_allclose(one["area"], [row["area"] for row in rows], rtol=1e-6)
        boxes = [
            [y / height, x / width, (y + h) / height, (x + w) / width] for x, y, w, h in (row["bbox"] for row in rows)
        ]
        np.testing.assert_allclose(one["boxes"], np.reshape(boxes, (-1, 4)), atol=1e-6)
        for mask, row in zip(one["masks"], rows, strict=True):
            np.testing.assert_array_equal(mask, coco.annToMask(row))
