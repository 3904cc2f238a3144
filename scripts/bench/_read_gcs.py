"""One pipeline that reads records from gs://, in a separate process: prints its numbers as JSON.

    python scripts/bench/_read_gcs.py PIPELINE STREAMS WINDOW MEGABYTES COUNTS_URL

It makes batches of 64, and asks COUNTS_URL for the store's counters before and after; graphs are made before the clock starts. A
pipeline without an end is measured in its steady state: MEGABYTES of records come before, and as many again are measured. WINDOW is
that of a shuffle, in records.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import urllib.request
from typing import Any

BATCH = 64
FOLDER = "gs://data/set"


def main() -> None:
    """Measure the pipeline that is named by the arguments."""
    name, streams, window, megabytes, url = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    import tensorflow as tf

    import tpudata

    files = sorted(tf.io.gfile.glob(f"{FOLDER}/train-*"))
    parse: dict[str, Any] = {"parse": lambda records: {"record": records}, "reading": tpudata.Reading(streams=streams)}

    def plain(buffer: int, epochs: int | None = None) -> tf.data.Dataset:
        repeated = tf.data.Dataset.from_tensor_slices(files).repeat(epochs)
        records = tf.data.TFRecordDataset(repeated, buffer_size=8 << 20, num_parallel_reads=streams)
        return (records.shuffle(buffer) if buffer else records).batch(BATCH).prefetch(2)

    def ours(**options: Any) -> tf.data.Dataset:
        return tpudata.make_input_fn(FOLDER, "train", seed=1, **options, **parse)({"batch_size": BATCH})

    pipelines = {
        "plain, one pass": lambda: plain(0, 1),
        "evaluation": lambda: ours(training=False),
        "plain": lambda: plain(0),
        "in order": lambda: ours(training=True, shuffle=False),
        "plain, shuffled": lambda: plain(window),
        "training": lambda: ours(training=True, shuffle=window),
    }
    is_one_pass = name in ("plain, one pass", "evaluation")
    dataset = pipelines[name]()
    before, begin, cpu = counts(url), time.perf_counter(), time.process_time()
    batches = iter(dataset)
    size = BATCH * _record_bytes(next(batches))
    first = time.perf_counter() - begin
    done, limit = (size, 1 << 62) if is_one_pass else (0, megabytes * 10**6)
    if not is_one_pass:
        for _ in range(limit // size):
            next(batches)
        before, begin, cpu = counts(url), time.perf_counter(), time.process_time()
    for _ in batches:
        done += size
        if done >= limit:
            break
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    after = counts(url)
    found = {
        "MB/s": done / 1e6 / seconds,
        "CPU s/GB": cpu / done * 1e9,
        "first batch s": first,
        "fetched": (after["sent"]["read"] - before["sent"].get("read", 0)) / done,
        "requests": after["requests"]["read"] - before["requests"].get("read", 0),
        "in flight": after["most_in_flight"],
        "store CPU s/GB": (after["cpu_seconds"] - before["cpu_seconds"]) / done * 1e9,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(json.dumps(found), flush=True)
    # What is in flight would be waited for.
    os._exit(0)


def _record_bytes(batch: Any) -> int:
    features = batch[0] if isinstance(batch, tuple) else batch
    values = features["record"] if isinstance(features, dict) else features
    return len(values[0].numpy())


def counts(url: str) -> dict[str, Any]:
    """Return the counters of the store."""
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    main()
