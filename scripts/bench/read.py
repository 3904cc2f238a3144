"""Speed of reading: records per CPU second of equivalent pipelines.

    python scripts/bench/read.py [CASE ...] [--rounds N] [--folder FOLDER] [--images DATASET [--resized DATASET] [--dali PYTHON]]

Cases, by default all:

    fixed     MNIST-like records of 842 bytes in batches of 1,024, parsed, next to TensorFlow's raw reader, which parses nothing, in
              order and shuffled, to the two usual ways to parse, and to the least work that a graph can do: read, decode_raw, a
              slice for each feature, and a gather if it shuffles
    resume    seconds to the first batch from step 0 and from later steps
    shuffle   how well a dataset that is sorted by class is mixed, next to a true permutation
    tokens    rows of 512 packed tokens, as int64 lists and as bytes of int32, in batches of 1,024
    jpeg      photographs, cropped for training and evaluation, next to tensorflow/tpu's imagenet_input and, with --dali PYTHON,
              NVIDIA DALI; of --images, a dataset of `tpudata convert images` with 64 shards or more, and of --resized, the same
              converted with --resize-shorter 256

Data is written to --folder (by default a temporary one) unless it exists. Each pipeline runs in a separate process, in
turn, and the median of the rounds counts. CPU is user and system time of all threads. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tensorflow as tf
from sides import read_jpeg, read_tokens
from sides.side_by_side import Side, print_table

import tpudata
from tpudata.format import (
    Feature,
    Manifest,
    Source,
    Split,
    encode_example,
    open_dataset,
    shard_name,
    write_metadata,
    write_shard,
)
from tpudata.format.example.value_positions import find_value_positions
from tpudata.input.dataset_ops import list_range_numbers
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.streams import StreamOrder
from tpudata.input.order.training import TrainingOrder, find_largest_divisor
from tpudata.source.chunk_order import ChunkOrder, ChunkTable, WindowKey

BATCH = 1024
PIXELS = 28 * 28
# Records of 842 bytes in the default window of 96 MiB.
WINDOW = 119_552
# Bytes of the default window of records that are read in pieces.
PIECES_WINDOW = 512 << 20


def main() -> None:
    """Run the cases and print their tables."""
    names = (*CASES, "jpeg")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"out of {', '.join(names)}")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, of which the median counts (default %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="where data is kept for the next run")
    parser.add_argument("--images", type=Path, metavar="DATASET", help="of photographs, for jpeg")
    parser.add_argument("--resized", type=Path, metavar="DATASET", help="the same, converted with --resize-shorter 256")
    parser.add_argument("--dali", metavar="PYTHON", help="of an environment with nvidia-dali, for jpeg")
    flags = parser.parse_args()
    unknown = [case for case in flags.cases if case not in names]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(names)}")
    if "jpeg" in flags.cases and not flags.images:
        parser.error("jpeg: pass --images DATASET")
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as temporary:
        for case in flags.cases or (names if flags.images else CASES):
            if case == "jpeg":
                read_jpeg.report(flags.images, flags.resized, flags.rounds, flags.dali)
            else:
                CASES[case](flags.folder or Path(temporary), flags.rounds)
            print()


def fixed(folder: Path, round_count: int) -> None:
    """Measure records of one size: a dataset that fits the shuffle's window, and one that does not."""
    for name, record_count, batch_count in (("52 MB", 61_440, 300), ("345 MB", 409_600, 400)):
        data = write_mnist_like(folder / f"fixed-{record_count}", record_count)
        sides = {}
        for title, build in FIXED.items():
            if build is read_slowly:
                # Its batches take so long that 20 are enough.
                sides[title] = Side(partial(build, data), batch_count=20)
            elif title.startswith(("tpudata, training", "least, shuffled")):
                # A window of 117 batches is filled several times in a round. The warm-up passes over the dataset: 5 times over the
                # small one, once over the large one.
                sides[title] = Side(partial(build, data), batch_count=1600, warm_up=batch_count)
            else:
                sides[title] = Side(partial(build, data), batch_count=batch_count)
        print(f"fixed: {record_count:,} records of 842 bytes, {name}; thousand records")
        print_table(sides, BATCH, round_count)


def resume(folder: Path, round_count: int) -> None:
    """Measure seconds to the first batch of a dataset larger than the shuffle's window."""
    data = write_mnist_like(folder / "fixed-409600", 409_600)
    input_fn = tpudata.make_input_fn(data, "train", training=True, seed=1)

    def measure_first_batch(step: int) -> float:
        begin = time.perf_counter()
        next(iter(input_fn({"batch_size": BATCH}, start_step=step)))
        return time.perf_counter() - begin

    # The first call also imports modules and traces functions.
    measure_first_batch(0)
    print("resume: 345 MB; seconds to the first batch")
    for step in (0, 1, 1000, 10**6, 10**9):
        seconds = statistics.median(measure_first_batch(step) for _ in range(round_count))
        print(f"    from step {step:<13,} {seconds:8.2f}")


def shuffle(folder: Path, round_count: int) -> None:  # noqa: ARG001
    """Measure how well orders mix the records of a dataset that is sorted by class; no record is read."""
    print(
        "shuffle: a dataset sorted by class; distance of records from their places, as a share of all, and classes per batch"
    )
    print(f"    {'':49} {'mean':>6} {'25%':>6} {'50%':>6} {'75%':>6} {'classes':>8}")
    # `size` is the bytes of a record; `chunk` is the number of records that are shuffled as a unit; `window` is in records.
    for name, record_count, size, chunk, window, class_count in (
        ("1.28 M of 110 kB (141 GB), 1000 classes", 1_280_000, 110_000, 8, 1024, 1000),
        ("409,600 of 842 bytes (345 MB), 10 classes", 409_600, 842, 1024, WINDOW, 10),
        ("4.1 M of 842 bytes (3.4 GB), 1000 classes", 4_096_000, 842, 1024, WINDOW, 1000),
        ("1.28 M of tokens, 6.2 kB (7.9 GB), 1000 sources", 1_280_000, 6200, 512, 16_236, 1000),
    ):
        steps = record_count // BATCH
        # A dataset of 8 shards; the seed is 1.
        order = TrainingOrder.make(Chunks.cut([record_count // 8] * 8, chunk), BATCH, window, 1)
        permutations = {name: _list_order(order, steps)}
        if (pieces_window := max(2048, PIECES_WINDOW // size)) < record_count:
            # As from an object store: shards of 100 MB, read in at most 32 lanes. At each of the `lane_count - 1` cuts between
            # lanes, about 2.9 MB are fetched twice, which may cost 3 % of the bytes in all.
            lane_count = find_largest_divisor(BATCH, min(32, 1 + round(0.03 * record_count * size / 2.9e6)))
            pieces = Chunks.cut([record_count], 10**8 // size)
            streams = StreamOrder.with_lanes(
                pieces, BATCH, pieces_window, 1, num_lanes=lane_count, max_run_records=10**6 // size
            )
            permutations[f"  in pieces, {lane_count} lanes"] = _list_order(streams, steps)
        permutations["  RecordSource.shuffle"] = _list_source_order(record_count, size)
        permutations["  true permutation"] = np.random.default_rng(0).permutation(record_count)
        for label, numbers in permutations.items():
            distances = np.abs(numbers - np.arange(len(numbers))) / record_count
            # Sorted by class, each class has a run of `record_count // class_count` records.
            record_classes = numbers // (record_count // class_count)
            batch_classes = np.mean([len(np.unique(batch)) for batch in record_classes.reshape(-1, BATCH)])
            quartiles = " ".join(f"{quartile:6.3f}" for quartile in np.quantile(distances, (0.25, 0.5, 0.75)))
            print(f"    {label:49} {distances.mean():6.3f} {quartiles} {batch_classes:8.1f}")


def _list_order(order: TrainingOrder, steps: int) -> Any:
    """Return the numbers of the records of the first steps of an order, int64 [rows of all steps].

    The graph is the reader's, except that it makes numbers where the reader reads records.
    """
    # Each slot has the same number of neighbouring rows of every batch, and reads a separate sequence of records.
    slots = order.find_slots(0, order.batch_size)
    if isinstance(order, StreamOrder):
        # The slots take turns, each with its next run.
        streams = [
            order.list_stream_ranges(np.int64(slot), 0).map(tf.range).rebatch(order.turns_per_run) for slot in slots
        ]
        read = tf.data.Dataset.choose_from_datasets(streams, tf.data.Dataset.range(len(slots)).repeat())
    else:
        # The items are (firsts, stops) of ranges of records; item 1 of the result has the numbers of all their records.
        read = order.list_block_ranges(slots, 0).map(lambda *spans: list_range_numbers(*spans)[1])
    # Elements are now blocks of records in the order of reading; rows of batches are picked from them.
    read = read.rebatch(len(slots) * order.turns_per_block)
    blocks = tf.data.Dataset.zip((tf.data.Dataset.range(tf.int64.max), read)).map(
        lambda block, records: tf.gather(records, order.find_block_indices(slots, block))
    )
    return np.concatenate(list(blocks.unbatch().take(steps).as_numpy_iterator()))


def _list_source_order(record_count: int, size: int) -> Any:
    """Return the numbers of the records of an epoch of `RecordSource.shuffle`, without a last partial batch.

    Args:
        record_count: number of records.
        size: bytes of a record.
    """
    # Chunks of 8 MiB, as RecordSource uses them, and at least as many as a window holds.
    chunk_count = max(32, record_count * size >> 23)
    cuts = record_count * np.arange(chunk_count + 1) // chunk_count
    # All chunks are of shard 0.
    table = ChunkTable(np.zeros(chunk_count, np.int64), cuts[:-1], np.diff(cuts))
    options = {
        "seed": 1,
        "epochs": 1,
        "host_index": 0,
        "host_count": 1,
        "lane_count": 1,
        "turn_length": 1,
        "max_window_chunks": 32,
    }
    order = ChunkOrder(table, **options)
    numbers = []
    key: WindowKey | None = WindowKey(0, 0, 0)
    while key is not None:
        window = order.make_window(key)
        # A record's number is that of its chunk's first record plus its index in the chunk.
        numbers.append(np.array([chunk.first for chunk in window.chunks])[window.chunk_indices] + window.record_indices)
        key = order.find_following(key)
    return np.concatenate(numbers)[: record_count // BATCH * BATCH]


def tokens(folder: Path, round_count: int) -> None:
    """Measure rows of 512 tokens, stored in two ways."""
    for title, sides in read_tokens.list_sides(folder, BATCH):
        print(f"{title}; thousand rows")
        print_table(sides, BATCH, round_count)


CASES: dict[str, Callable[[Path, int], None]] = {
    "fixed": fixed,
    "resume": resume,
    "shuffle": shuffle,
    "tokens": tokens,
}


def read_raw(data: str) -> tf.data.Dataset:
    """Return TensorFlow's reader, which parses nothing."""
    return tf.data.TFRecordDataset(_list_shards(data)).batch(BATCH).prefetch(2)


def read_raw_shuffled(data: str) -> tf.data.Dataset:
    """Return TensorFlow's reader with a shuffle window of as many records as ours."""
    return tf.data.TFRecordDataset(_list_shards(data)).repeat().shuffle(WINDOW).batch(BATCH).prefetch(2)


def read_in_batches(data: str) -> tf.data.Dataset:
    """Return the faster of the two usual ways to parse: batch, then `parse_example`."""
    return (
        tf.data.TFRecordDataset(_list_shards(data))
        .batch(BATCH)
        .map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(2)
    )


def read_slowly(data: str) -> tf.data.Dataset:
    """Return the slower of the two usual ways to parse: `parse_single_example`, then batch."""
    return tf.data.TFRecordDataset(_list_shards(data)).map(parse_record).batch(BATCH).prefetch(2)


def read_least(data: str) -> tf.data.Dataset:
    """Return a dataset with the least work that makes tensors in order: positions of values are known, and no Example is parsed."""
    return (
        tf.data.TFRecordDataset(_list_shards(data))
        .batch(BATCH)
        .map(make_slicer(data), num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(2)
    )


def read_least_shuffled(data: str) -> tf.data.Dataset:
    """Return a dataset with the least work that shuffles: runs of 1,024 records, drawn with repetition, mixed in a window."""
    dataset, slice_records = open_dataset(data), make_slicer(data)
    files, shards = tf.constant(_list_shards(data)), dataset.manifest.split("train").shards
    # By shard: the offset of every BATCH-th record. The last of the index's offsets is the end of the file.
    run_offsets = tf.constant([dataset.index(shard).offsets[:-1:BATCH] for shard in shards])
    # All shards have the same number of runs.
    (runs_per_shard,) = {shard.records // BATCH for shard in shards}
    run_count = runs_per_shard * len(shards)

    def read_run(draw: tf.Tensor) -> Any:
        # Return the columns of the records of a random run; the number of the draw is its seed.
        # Seeds of runs begin with 0, seeds of windows with 1.
        run = tf.random.stateless_uniform([], tf.stack([0, draw]), 0, run_count, tf.int64)
        shard, run_in_shard = run // runs_per_shard, run % runs_per_shard
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[files[shard]],
            compression_type="",
            buffer_size=1 << 20,
            byte_offsets=[run_offsets[shard, run_in_shard]],
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        return slice_records(records.batch(BATCH).take(1).get_single_element())

    def mix(number: tf.Tensor, *window: tf.Tensor) -> tf.data.Dataset:
        # Return batches of a window's records in random order; `number` is the number of the window.
        draws = tf.random.stateless_uniform([WINDOW], tf.stack([1, number]), dtype=tf.float32)
        order = tf.reshape(tf.argsort(draws)[: WINDOW // BATCH * BATCH], [-1, BATCH])
        return tf.data.Dataset.range(WINDOW // BATCH).map(
            lambda step: tuple(tf.gather(column, order[step]) for column in window)
        )

    columns = tf.data.Dataset.range(tf.int64.max).map(read_run, num_parallel_calls=tf.data.AUTOTUNE)
    windows = tf.data.Dataset.zip((tf.data.Dataset.range(tf.int64.max), columns.rebatch(WINDOW)))
    return windows.prefetch(1).flat_map(lambda number, window: mix(number, *window)).prefetch(2)


def read_training(data: str, **options: Any) -> tf.data.Dataset:
    """Return our pipeline for training; images are uint8 as stored, unless options of `make_input_fn` say otherwise."""
    return tpudata.make_input_fn(data, "train", training=True, seed=1, **options)({"batch_size": BATCH})


def read_evaluation(data: str) -> tf.data.Dataset:
    """Return our pipeline for evaluation: one pass in order."""
    return tpudata.make_input_fn(data, "train", training=False)({"batch_size": BATCH})


FIXED: dict[str, Callable[[str], tf.data.Dataset]] = {
    "raw: TFRecordDataset, batch": read_raw,
    "raw, shuffled": read_raw_shuffled,
    "batch, parse_example": read_in_batches,
    "map(parse_single_example), batch": read_slowly,
    "least: batch, decode_raw, slices": read_least,
    "least, shuffled": read_least_shuffled,
    "tpudata, training": read_training,
    "tpudata, training, float32": partial(read_training, images=tpudata.Images(dtype="float32")),
    "tpudata, training, shuffle=False": partial(read_training, shuffle=False),
    "tpudata, evaluation": read_evaluation,
}


def _list_shards(data: str) -> list[str]:
    return sorted(str(path) for path in Path(data).glob("train-*"))


def make_slicer(data: str) -> Callable[[tf.Tensor], Any]:
    """Return a function that slices batches of records into images and labels, uint8 and int32.

    It takes the positions of values from the first record, since all have the same layout.
    """
    first = next(iter(tf.data.TFRecordDataset(_list_shards(data)))).numpy()
    places = find_value_positions(first)
    assert places is not None
    image, label = places["image_raw"], places["label"]

    def slice_records(records: tf.Tensor) -> Any:
        # All records have the length of the first, and each value at the same place.
        matrix = tf.ensure_shape(tf.io.decode_raw(records, tf.uint8), [None, len(first)])
        images = tf.reshape(matrix[:, image.begin : image.end], [-1, 28, 28, 1])
        # Labels below 128 have one byte.
        return images, tf.cast(matrix[:, label.begin], tf.int32)

    return slice_records


def parse_batch(records: tf.Tensor) -> Any:
    """Parse a batch of records into images, float32 from 0 to 1, and labels, int32."""
    features = tf.io.parse_example(records, SPEC)
    images = tf.reshape(tf.io.decode_raw(features["image_raw"], tf.uint8), (-1, 28, 28, 1))
    return tf.cast(images, tf.float32) / 255.0, tf.cast(features["label"], tf.int32)


def parse_record(record: tf.Tensor) -> Any:
    """Parse one record, as the first programs for TPUs did."""
    features = tf.io.parse_single_example(record, SPEC)
    image = tf.ensure_shape(tf.io.decode_raw(features["image_raw"], tf.uint8), [PIXELS])
    return tf.reshape(tf.cast(image, tf.float32) / 255.0, (28, 28, 1)), tf.cast(features["label"], tf.int32)


SPEC = {"image_raw": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def write_mnist_like(folder: Path, record_count: int, shard_count: int = 4) -> str:
    """Write random pictures of 28 x 28 with labels 0 to 9, unless they exist; return the folder's path."""
    if (folder / "manifest.json").exists():
        return str(folder)
    random = np.random.default_rng(0)

    def make_records(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield encode_example({"image_raw": random.bytes(PIXELS), "label": int(random.integers(10))})

    written_shards = [
        write_shard(str(folder), shard_name("train", number, shard_count), make_records(record_count // shard_count))
        for number in range(shard_count)
    ]
    manifest = Manifest(
        layout="raw",
        splits={"train": Split(tuple(written_shards))},
        features=(
            Feature("image_raw", "bytes", "uint8", (28, 28, 1), "raw"),
            Feature("label", "int64", "int64", num_classes=10),
        ),
        source=Source("random", record_count, bytes=0, fingerprint="0"),
        created_by=tpudata.__version__,
        labels=10,
    )
    write_metadata(str(folder), manifest, [str(number) for number in range(10)])
    return str(folder)


if __name__ == "__main__":
    main()
