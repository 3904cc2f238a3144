"""The case "jpeg" of read.py: the cost of a crop, in training and in evaluation, next to other pipelines.

The other pipelines are one built as tensorflow/tpu's imagenet_input and, with `--dali`, NVIDIA DALI's on the CPU. Each side runs
in a separate process, in turn, and makes normalized batches of 224 x 224: bfloat16, but float32 in DALI, which has no bfloat16.
In training all shuffle in a window of 1,024 records. Figures are CPU time of user and system once the buffers are full, images
per second, and the process's peak memory; the median of the rounds counts. "TensorFlow alone" imports it and reads nothing. Mean
and deviation of the values show whether all sides make the same images.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIZE = 224
SPLIT = "train"
BATCH, BATCH_COUNT = 128, 30
WINDOW = 1024
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Side(NamedTuple):
    """Measurement of one process.

    Attributes:
        name: name of the pipeline, in SIDES.
        mode: "training" or "evaluation".
        folder: folder of the dataset.
    """

    name: str
    mode: str
    folder: Path


def report(images: Path, resized: Path | None, round_count: int, dali: str | None) -> None:
    """Run each side in turn, and print what an image costs and the ratios to imagenet_input.

    Args:
        images: a dataset of `tpudata convert images`, best with 64 shards or more, as ImageNet has 1,024.
        resized: the same pictures, converted with `--resize-shorter 256`, or None.
        round_count: number of rounds.
        dali: Python of an environment with nvidia-dali, or None.
    """
    names = [WHOLE, THEIRS, OURS, *([DALI] if dali else [])]
    sides = [Side(name, "training", images) for name in names]
    sides += [Side(name, "training", resized) for name in names[1:] if resized]
    sides += [Side(name, "evaluation", images) for name in names[1:]]
    sides.append(Side(ALONE, "", images))
    # Figures of each round, as `measure` returns them.
    figures: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(round_count):
        for side in sides:
            figures[side].append(_run(side, dali or ""))
    print(f"jpeg: batches of {BATCH}, {SIZE} x {SIZE}, normalized; median of {round_count} rounds")
    print(f"    {'':<46}{'CPU per image':>14}{'ratio':>7}{'per s':>8}{'peak':>9}{'mean':>8}{'std':>7}")
    for side, side_figures in figures.items():
        medians = {key: statistics.median(figure[key] for figure in side_figures) for key in side_figures[0]}
        if side.name == ALONE:
            print(f"    {ALONE:<46}{'':>29}{medians['peak']:>6.0f} MB")
            continue
        name = f"{side.mode}, {side.name}{', resized to 256' if side.folder == resized else ''}"
        base_figures = figures[Side(WHOLE if side.mode == "training" else THEIRS, side.mode, images)]
        ratio = statistics.median(
            base["seconds"] / figure["seconds"] for base, figure in zip(base_figures, side_figures, strict=True)
        )
        print(
            f"    {name:<46}{medians['seconds'] * 1e6:>11,.0f} us{ratio:>7.2f}{medians['rate']:>8,.0f}"
            f"{medians['peak']:>6.0f} MB{medians['mean']:>8.3f}{medians['std']:>7.3f}"
        )
    print(
        "    ratio: CPU time of the first line of the mode, divided by that of the line. Mean and std: of normalized values."
    )


def _run(side: Side, dali: str) -> dict[str, float]:
    """Measure a side in a separate process; return what `measure` returns there."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    python = dali if side.name == DALI else sys.executable
    command = [python, __file__, side.name, side.mode, str(side.folder)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{side.name}: {process.stderr}")
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def measure(side: Side) -> dict[str, float]:
    """Measure a side in this process.

    Returns:
        `seconds` of CPU time an image, `rate` in images per second, `peak` memory in MB, and `mean` and `std` of the values; of
        TensorFlow alone only `peak`.
    """
    if side.name == ALONE:
        import tensorflow  # noqa: F401

        return {"peak": _read_peak_mb()}
    batches = SIDES[side.name](side.folder, side.mode == "training")
    for _ in range(10):  # Then the shuffle's window and all buffers are full.
        next(batches)
    begin_cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(BATCH_COUNT):
        next(batches)
    cpu, clock = time.process_time() - begin_cpu, time.perf_counter() - begin
    peak, count = _read_peak_mb(), BATCH_COUNT * BATCH
    # Mean and standard deviation of 320 images show that all sides normalize alike.
    values = np.stack([np.asarray(next(batches))[:16].astype(np.float32) for _ in range(20)])
    moments = {"mean": float(values.mean()), "std": float(values.std())}
    return {"seconds": cpu / count, "rate": count / clock, "peak": peak, **moments}


def _read_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def read_ours(folder: Path, training: bool) -> Iterator[Any]:
    """Yield batches of make_input_fn."""
    import tpudata

    crop: Any = tpudata.TrainCrop(SIZE) if training else tpudata.CentreCrop(SIZE)
    input_fn = tpudata.make_input_fn(
        folder,
        SPLIT,
        training=training,
        images=tpudata.Images(crop=crop, normalize=tpudata.Normalize.imagenet(), dtype="bfloat16"),
        shuffle=WINDOW if training else None,
        seed=0,
    )
    dataset = input_fn({"batch_size": BATCH})
    while True:
        for features, _ in dataset:
            yield features["image"]


def read_dali(folder: Path, training: bool) -> Iterator[Any]:
    """Yield batches of DALI's CPU pipeline, with as many threads as there are cores."""
    import struct
    import tempfile

    from nvidia.dali import fn, pipeline_def, tfrecord, types

    paths = sorted(str(path) for path in folder.glob(f"{SPLIT}-*.tfrecord"))
    index_paths = []
    temporary = tempfile.mkdtemp(prefix="tpudata-dali-")
    for number, path in enumerate(paths):
        index_paths.append(str(Path(temporary, str(number))))
        with open(path, "rb") as records, open(index_paths[-1], "w") as index:
            begin = 0
            while header := records.read(8):
                # A record has a length of 8 bytes, and two checksums of 4.
                (length,) = struct.unpack("<Q", header)
                end = begin + 16 + length
                index.write(f"{begin} {end - begin}\n")
                begin = records.seek(end)

    def make_pipeline() -> Any:
        # DALI's graph: random crops and flips in training, otherwise the centre of the resized image; then normalized.
        features = {"image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, "")}
        record = fn.readers.tfrecord(
            path=paths, index_path=index_paths, features=features, random_shuffle=training, initial_fill=WINDOW
        )
        encoded = record["image/encoded"]
        mirror: Any = 0
        if training:
            image = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            image = fn.resize(image, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR)
            mirror = fn.random.coin_flip()
        else:
            image = fn.resize(fn.decoders.image(encoded), resize_shorter=256, interp_type=types.INTERP_LINEAR)
        return fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout="HWC",
            crop=(SIZE, SIZE),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=mirror,
        )

    thread_count = len(os.sched_getaffinity(0))
    pipeline = pipeline_def(make_pipeline, batch_size=BATCH, num_threads=thread_count, device_id=None, seed=0)()
    pipeline.build()
    while True:
        (images,) = pipeline.run()
        yield images.as_tensor()


def read_theirs(folder: Path, training: bool, *, decodes_whole: bool = False) -> Iterator[Any]:
    """Yield batches of tensorflow/tpu's imagenet_input and resnet_preprocessing, in TensorFlow 2's names.

    Args:
        folder: folder of the dataset.
        training: whether crops, flips and the order are random.
        decodes_whole: whether whole images are decoded, and not only their crops.
    """
    import tensorflow as tf

    def choose_crop(shape: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the start and the size of a crop, int32 [height, width, channels]; it has all channels."""
        if not training:
            # The crop of an image of 256 pixels has 224.
            side = tf.cast(SIZE / (SIZE + 32) * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
            return tf.stack([(shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2, 0]), tf.stack([side, side, -1])
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
        # The image of a record, bfloat16 [SIZE, SIZE, 3], and its label.
        encoded, label = _parse(record)
        if decodes_whole:
            image = tf.io.decode_image(encoded, 3, expand_animations=False)
            image = tf.image.convert_image_dtype(image, tf.float32)
            image = tf.slice(image, *choose_crop(tf.shape(image)))
        else:
            begin, size = choose_crop(tf.image.extract_jpeg_shape(encoded))
            image = tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
            image = tf.image.convert_image_dtype(image, tf.float32)
        image = tf.compat.v1.image.resize_bicubic([image], [SIZE, SIZE])[0]
        image = (image - tf.constant(MEAN, shape=[1, 1, 3])) / tf.constant(STD, shape=[1, 1, 3])
        if training:
            image = tf.image.random_flip_left_right(image)
        return tf.cast(tf.reshape(image, [SIZE, SIZE, 3]), tf.bfloat16), label

    paths = sorted(str(path) for path in folder.glob(f"{SPLIT}-*.tfrecord"))
    files = tf.data.Dataset.from_tensor_slices(paths)
    files = files.shuffle(1024).repeat() if training else files.repeat()
    records = files.interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=8 << 20),
        cycle_length=64,
        num_parallel_calls=64,
        deterministic=not training,
    )
    records = records.shuffle(WINDOW) if training else records
    images = records.map(prepare, num_parallel_calls=64).batch(BATCH, drop_remainder=True).prefetch(2)
    for batch, _ in images:
        yield batch


def _parse(record: Any) -> tuple[Any, Any]:
    """Return the encoded image and the label of a record, scalars of string and int32."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    return parsed["image/encoded"], tf.cast(parsed["image/class/label"], tf.int32)


WHOLE, THEIRS, OURS, DALI, ALONE = (
    "imagenet_input, whole image decoded",
    "imagenet_input",
    "tpudata",
    "DALI",
    "TensorFlow alone",
)
SIDES: dict[str, Callable[[Path, bool], Iterator[Any]]] = {
    WHOLE: partial(read_theirs, decodes_whole=True),
    THEIRS: read_theirs,
    OURS: read_ours,
    DALI: read_dali,
}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    print(json.dumps(measure(Side(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))
