"""One pipeline that reads records from gs://, in a separate process: prints its numbers as JSON.

    python scripts/bench/sides/read_gcs.py PIPELINE STREAMS WINDOW MEGABYTES COUNTS_URL

It makes batches of 64, and asks COUNTS_URL for the store's counters before and after; graphs are made before the clock starts. A
pipeline without an end is measured in its steady state: MEGABYTES of records come before, and as many again are measured. WINDOW is
the window of a shuffle, in records.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

BATCH = 64
FOLDER = "gs://data/set"
RECORD_BYTES = 110_000
ONE_PASS = ("plain, one pass", "evaluation", "source, one pass")


def main() -> None:
    """Measure the pipeline that is named by the arguments."""
    name, streams, window, megabytes, url = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    is_one_pass = name in ONE_PASS
    start = (prepare_source if name.startswith("source") else prepare_graph)(name, streams, window)
    before, begin, cpu = fetch_counts(url), time.perf_counter(), time.process_time()
    batches = iter(start())
    # Bytes of a batch, since all records have one size.
    size = BATCH * _measure_record(next(batches))
    first = time.perf_counter() - begin
    # One pass is measured from its start to its end, so its first batch counts.
    done, limit = (size, 1 << 62) if is_one_pass else (0, megabytes * 10**6)
    if not is_one_pass:
        # The clock starts again once the pipeline is in its steady state.
        for _ in range(limit // size):
            next(batches)
        before, begin, cpu = fetch_counts(url), time.perf_counter(), time.process_time()
    for _ in batches:
        done += size
        if done >= limit:
            break
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    after = fetch_counts(url)
    # The store has no counter for reads before the first one.
    numbers = {
        "MB/s": done / 1e6 / seconds,
        "CPU s/GB": cpu / done * 1e9,
        "first batch s": first,
        "fetched": (after["sent"]["read"] - before["sent"].get("read", 0)) / done,
        "requests": after["requests"]["read"] - before["requests"].get("read", 0),
        "in flight": after["most_in_flight"],
        "store CPU s/GB": (after["cpu_seconds"] - before["cpu_seconds"]) / done * 1e9,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(json.dumps(numbers), flush=True)
    # An ordinary exit would wait for requests in flight.
    os._exit(0)


def prepare_graph(name: str, streams: int, window: int) -> Callable[[], Iterable[Any]]:
    """Make the graph of a pipeline, and return a function that returns its dataset, so that starting it can be timed alone.

    Args:
        name: name of the pipeline.
        streams: number of files, or of pieces of files, that are read at a time.
        window: records in the window of a shuffle; pipelines without a shuffle ignore it.
    """
    import tensorflow as tf

    import tpudata

    files = sorted(tf.io.gfile.glob(f"{FOLDER}/train-*"))
    reading: dict[str, Any] = {"seed": 1, "reading": tpudata.Reading(streams=streams)}
    # Records stay as stored.
    parse: dict[str, Any] = {"parse": lambda records: {"record": records}}

    def plain(buffer: int, epochs: int | None = None) -> tf.data.Dataset:
        # TensorFlow's reader; `buffer` is the records of the shuffle's window, 0 for none, and None epochs are endless.
        repeated = tf.data.Dataset.from_tensor_slices(files).repeat(epochs)
        records = tf.data.TFRecordDataset(repeated, buffer_size=8 << 20, num_parallel_reads=streams)
        return (records.shuffle(buffer) if buffer else records).batch(BATCH).prefetch(2)

    def ours(**options: Any) -> Any:
        return tpudata.make_input_fn(FOLDER, "train", **options, **reading)

    params = {"batch_size": BATCH}
    pipelines: dict[str, Callable[[], Any]] = {
        "plain, one pass": lambda: plain(0, 1),
        "evaluation": lambda: ours(training=False, **parse)(params),
        "plain": lambda: plain(0),
        "in order": lambda: ours(training=True, shuffle=False, **parse)(params),
        "plain, shuffled": lambda: plain(window),
        "training": lambda: ours(training=True, shuffle=window, **parse)(params),
        "training, arrays": lambda: ours(training=True, shuffle=window)(params),
        "as_numpy": lambda: tpudata.as_numpy(ours(training=True, shuffle=window), BATCH),
        "as_jax": lambda: tpudata.as_jax(ours(training=True, shuffle=window), BATCH),
    }
    dataset = pipelines[name]()
    return lambda: dataset


def prepare_source(name: str, streams: int, window: int) -> Callable[[], Iterable[Any]]:
    """Read the manifest of a RecordSource, and return a function that starts a loop over its batches.

    Args:
        name: name of the pipeline.
        streams: number of pieces of 8 MiB that are read ahead.
        window: records in the window of a shuffle.
    """
    import tpudata

    source = tpudata.RecordSource(FOLDER, "train", decode=None, read_ahead=streams * (8 << 20))
    shuffled = source.shuffle(1, epochs=100, window_bytes=window * RECORD_BYTES)

    def by_grain() -> Iterable[Any]:
        # Batches that grain's loader reads in 16 threads, in the order of the shuffled source.
        import grain.python as grain

        options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=128)
        return make_batches(grain.MapDataset.source(shuffled).to_iter_dataset(options))

    def at_random() -> Iterator[Any]:
        # Endless batches of random records, each read with one call.
        random = np.random.default_rng(0)
        while True:
            yield source.__getitems__(random.integers(0, len(source), BATCH))

    def one_by_one() -> Iterator[Any]:
        # Endless batches of random records, each record read with a call in one of 64 threads.
        random = np.random.default_rng(0)
        with ThreadPoolExecutor(64) as pool:
            while True:
                yield list(pool.map(source.__getitem__, random.integers(0, len(source), BATCH)))

    return {
        "source, one pass": lambda: make_batches(source),
        "source, shuffled": lambda: make_batches(shuffled),
        "source, grain": by_grain,
        "source, batches": at_random,
        "source, 64 threads": one_by_one,
    }[name]


def make_batches(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of BATCH records; the last one may be shorter."""
    remaining = iter(records)
    while batch := list(itertools.islice(remaining, BATCH)):
        yield batch


def _measure_record(batch: Any) -> int:
    """Return the size in bytes of a batch's first record or its image. A batch is a list, a dict or (features, labels)."""
    if isinstance(batch, list):
        return len(batch[0])
    features = batch[0] if isinstance(batch, tuple) else batch
    if isinstance(features, dict):
        features = next(features[name] for name in ("record", "image") if name in features)
    record = np.asarray(features[0])
    return len(record.item()) if record.dtype == object else record.nbytes


def fetch_counts(url: str) -> dict[str, Any]:
    """Return the counters of the store."""
    with urllib.request.urlopen(url) as answer:
        counters: dict[str, Any] = json.load(answer)
    return counters


if __name__ == "__main__":
    main()
