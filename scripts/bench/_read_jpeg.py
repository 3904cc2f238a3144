"""The case "jpeg" of read.py: what a training crop costs, ours beside a pipeline built as tensorflow/tpu's imagenet_input.

Each side runs in a process of its own, in turn, and makes batches of 224 x 224 in bfloat16; both shuffle in a window of 1,024
records. Figures are CPU time of user and system once the buffers are full, and the process's peak memory; the median of the rounds
counts. "TensorFlow alone" has imported it and read nothing. Mean and deviation of the values tell whether both sides make the
same of the pictures.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 224
SPLIT = "train"
BATCH, BATCHES = 128, 30
WINDOW = 1024
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WHOLE, THEIRS, OURS, ALONE = (
    "imagenet_input, whole image decoded",
    "imagenet_input, crop decoded",
    "tpudata",
    "TensorFlow alone",
)


def report(images: Path, resized: Path | None, rounds: int) -> None:
    """Runs each side in turn, and prints what an image costs and the ratios to decoding whole images.

    Args:
        images: a dataset of `tpudata convert images`, best with 64 shards or more, as ImageNet has 1,024.
        resized: the same pictures, converted with `--resize-shorter 256`, or None.
        rounds: how often.
    """
    runs = [(side, images) for side in (WHOLE, THEIRS, OURS, ALONE)]
    if resized:
        runs += [(THEIRS, resized), (OURS, resized)]
    found: dict[Any, list[dict[str, float]]] = {run: [] for run in runs}
    for _ in range(rounds):
        for side, folder in runs:
            found[side, folder].append(_run(side, folder))
    median = {
        run: {key: statistics.median(round_[key] for round_ in rounds_) for key in rounds_[0]}
        for run, rounds_ in found.items()
    }
    whole = median[WHOLE, images]
    print(f"jpeg: batches of {BATCH}, {SIZE} x {SIZE}, bfloat16; median of {rounds} rounds")
    print(f"    {'':<44}{'CPU per image':>14}{'ratio':>7}{'peak':>9}{'mean':>8}{'std':>7}")
    for (side, folder), figures in median.items():
        name = side + (", resized to 256" if folder == resized else "")
        if side == ALONE:
            print(f"    {name:<44}{'':>21}{figures['peak']:>6.0f} MB")
            continue
        print(
            f"    {name:<44}{figures['seconds'] * 1e6:>11,.0f} us{whole['seconds'] / figures['seconds']:>7.2f}"
            f"{figures['peak']:>6.0f} MB{figures['mean']:>8.3f}{figures['std']:>7.3f}"
        )
    print(f"    ratio: to {WHOLE}. Mean and std are of normalised values.")


def _run(side: str, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, __file__, side, str(folder)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(side: str, folder: Path) -> dict[str, float]:
    """CPU seconds an image, peak MB, and mean and deviation of the values, of one side."""
    import tensorflow  # noqa: F401

    if side == ALONE:
        return {"peak": _peak()}
    batches = iter(ours(folder) if side == OURS else theirs(folder, whole=side == WHOLE))
    for _ in range(10):  # The shuffle's window and all buffers are full then.
        next(batches)
    before = time.process_time()
    for _ in range(BATCHES):
        next(batches)
    seconds = (time.process_time() - before) / (BATCHES * BATCH)
    peak = _peak()
    values = np.stack([next(batches)[0][:16].numpy().astype(np.float32) for _ in range(20)])
    return {"seconds": seconds, "peak": peak, "mean": float(values.mean()), "std": float(values.std())}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def ours(folder: Path) -> Any:
    """The training crop by make_input_fn."""
    import tpudata

    input_fn = tpudata.make_input_fn(
        folder,
        SPLIT,
        training=True,
        images=tpudata.Images(crop=tpudata.TrainCrop(SIZE), normalize=tpudata.Normalize.imagenet(), dtype="bfloat16"),
        shuffle=WINDOW,
        seed=0,
    )
    return input_fn({"batch_size": BATCH}).map(lambda features, labels: (features["image"], labels))


def theirs(folder: Path, *, whole: bool) -> Any:
    """The pipeline of tensorflow/tpu's imagenet_input and resnet_preprocessing, in TensorFlow 2's names."""
    import tensorflow as tf

    def window(shape: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        return begin, size

    def prepare(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = _parse(record)
        if whole:
            image = tf.io.decode_image(encoded, 3, expand_animations=False)
            image = tf.image.convert_image_dtype(image, tf.float32)
            image = tf.slice(image, *window(tf.shape(image)))
        else:
            begin, size = window(tf.image.extract_jpeg_shape(encoded))
            image = tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
            image = tf.image.convert_image_dtype(image, tf.float32)
        image = tf.compat.v1.image.resize_bicubic([image], [SIZE, SIZE])[0]
        image = (image - tf.constant(MEAN, shape=[1, 1, 3])) / tf.constant(STD, shape=[1, 1, 3])
        image = tf.image.random_flip_left_right(image)
        return tf.cast(tf.reshape(image, [SIZE, SIZE, 3]), tf.bfloat16), label

    paths = sorted(str(path) for path in folder.glob(f"{SPLIT}-*.tfrecord"))
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(1024).repeat()
    records = files.interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=8 << 20),
        cycle_length=64,
        num_parallel_calls=64,
        deterministic=False,
    )
    images = records.shuffle(WINDOW).map(prepare, num_parallel_calls=64)
    return images.batch(BATCH, drop_remainder=True).prefetch(2)


def _parse(record: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    return parsed["image/encoded"], tf.cast(parsed["image/class/label"], tf.int32)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
