"""Memory of feeding datasets that are larger than the shuffle's window and the buffers together.

    python scripts/bench/memory.py FOLDER [--gigabytes 2.2]

Writes two datasets to FOLDER, unless they exist: records of 842 bytes (28 x 28 pixels and a label) and of 110 kB on average, as
large as photographs (random bytes, fed as strings: nothing is decoded). `make_input_fn` feeds each in a separate process, in
training with a window of 64 MB and in evaluation. Prints how much the peak memory of the process has grown since TensorFlow was
imported and had run a small pipeline: after a quarter of the records, and after all of them. Memory is bounded if the two are about
equal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpudata.console.tables import table
from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard

_SHARD_COUNT = 16
_PIXELS, _LARGE_BYTES = 784, 110_000
_SMALL_RECORD_BYTES = 842
_WINDOW_BYTES = 64_000_000
# The large records then fill 14 batches; a quarter of them must be one at least.
_MIN_GIGABYTES = 0.1


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--gigabytes", type=float, default=2.2, help="of large records; of small ones a quarter")
    flags = parser.parse_args()
    if flags.gigabytes < _MIN_GIGABYTES:
        parser.error(f"--gigabytes: too little (got {flags.gigabytes}, expected {_MIN_GIGABYTES} or more)")
    large_count = round(flags.gigabytes * 1e9 / _LARGE_BYTES)
    small_count = round(flags.gigabytes / 4 * 1e9 / _SMALL_RECORD_BYTES)
    rows = [["", "records", "data", "after a quarter", "after all"]]
    for name, record_count, size, batch_size in (
        ("small", small_count, _SMALL_RECORD_BYTES, 1024),
        ("large", large_count, _LARGE_BYTES, 64),
    ):
        data = write_dataset(flags.folder / f"{name}-{record_count}", record_count, is_large=name == "large")
        for training in (True, False):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                arguments = (data, training, batch_size, record_count // batch_size, _WINDOW_BYTES // size)
                peaks = pool.apply(measure_peaks, arguments)
            title = f"{size:,} bytes, {'training' if training else 'evaluation'}"
            rows.append(
                [title, f"{record_count:,}", f"{record_count * size / 1e6:,.0f} MB", *(f"{mb:,.0f} MB" for mb in peaks)]
            )
    print(table(rows, right=range(1, 5)))


def write_dataset(folder: Path, record_count: int, *, is_large: bool) -> str:
    """Write a dataset of random records, unless it exists, and return its path."""
    if (folder / "manifest.json").exists():
        return str(folder)
    random = np.random.default_rng(0)

    def make_shard_records(number: int) -> Iterator[bytes]:
        for _ in range(record_count * number // _SHARD_COUNT, record_count * (number + 1) // _SHARD_COUNT):
            if is_large:
                yield encode_example({"text": random.bytes(int(_LARGE_BYTES * random.uniform(0.5, 1.5)))})
            else:
                yield encode_example({"image_raw": random.bytes(_PIXELS), "label": 7})

    shards = tuple(
        write_shard(str(folder), shard_name("train", number, _SHARD_COUNT), make_shard_records(number))
        for number in range(_SHARD_COUNT)
    )
    features: tuple[Feature, ...] = (Feature("text", "bytes", "string"),)
    if not is_large:
        features = (Feature("image_raw", "bytes", "uint8", (28, 28, 1), "raw"), Feature("label", "int64", "int64"))
    layout = "text" if is_large else "raw"
    manifest = Manifest(
        layout, {"train": Split(shards)}, features, Source("random", record_count, bytes=0, fingerprint="0"), ""
    )
    write_metadata(str(folder), manifest)
    return str(folder)


def measure_peaks(data: str, training: bool, batch_size: int, batch_count: int, window: int) -> list[float]:
    """Feed a dataset, and return by how many MB the peak memory has grown after a quarter of the batches, and after all.

    Args:
        data: path of the dataset.
        training: whether it is fed for training.
        batch_size: records in a batch.
        batch_count: number of batches.
        window: records of the shuffle's window in training.
    """
    import tensorflow as tf

    import tpudata

    # Starts the threads of tf.data.
    for _ in tf.data.Dataset.range(10).map(lambda x: x + 1).prefetch(1):
        pass
    begin_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    input_fn = tpudata.make_input_fn(
        data, "train", training=training, seed=1 if training else None, shuffle=window if training else None
    )
    peaks = []
    for number, _ in enumerate(input_fn({"batch_size": batch_size}).take(batch_count), 1):
        if number in (batch_count // 4, batch_count):
            peaks.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin_kb) / 1000)
    return peaks


if __name__ == "__main__":
    main()
