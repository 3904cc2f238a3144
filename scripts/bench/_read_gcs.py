"""One pipeline that reads records from gs://, in a process of its own: prints its numbers as JSON.

    python scripts/bench/_read_gcs.py PIPELINE STREAMS WINDOW MEGABYTES COUNTS_URL [IMAGE_SIZE]

It makes batches of 64 until MEGABYTES of records have come after the first batch, and asks COUNTS_URL for the store's counters before
and after. WINDOW is that of a shuffle, in records.
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
    parse = {"parse": lambda records: {"record": records}, "reading": tpudata.Reading(streams=streams)}

    def plain(buffer: int) -> tf.data.Dataset:
        repeated = tf.data.Dataset.from_tensor_slices(files).repeat()
        records = tf.data.TFRecordDataset(repeated, buffer_size=8 << 20, num_parallel_reads=streams)
        return (records.shuffle(buffer) if buffer else records).batch(BATCH).prefetch(2)

    def ours(**options: Any) -> tf.data.Dataset:
        return tpudata.make_input_fn(FOLDER, "train", seed=1, **options, **parse)({"batch_size": BATCH})

    pipelines = {
        "plain": lambda: plain(0),
        "plain, shuffled": lambda: plain(window),
        "evaluation": lambda: ours(training=False),
        "in order": lambda: ours(training=True, shuffle=False),
        "training": lambda: ours(training=True, shuffle=window),
    }
    begin = time.perf_counter()
    batches = iter(pipelines[name]())
    size = BATCH * sum(len(record) for record in [_record(next(batches))])
    first = time.perf_counter() - begin
    before, begin, cpu = counts(url), time.perf_counter(), time.process_time()
    done = 0
    for batch in batches:
        done += size
        if done >= megabytes * 10**6:
            break
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    after = counts(url)
    found = {
        "MB/s": done / 1e6 / seconds,
        "CPU s/GB": cpu / done * 1e9,
        "first": first,
        "fetched": (after["sent"]["read"] - before["sent"]["read"]) / done,
        "requests": after["requests"]["read"] - before["requests"]["read"],
        "store CPU s/GB": (after["cpu_seconds"] - before["cpu_seconds"]) / done * 1e9,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print(json.dumps(found), flush=True)
    # What is in flight would be waited for.
    os._exit(0)


def _record(batch: Any) -> bytes:
    features = batch[0] if isinstance(batch, tuple) else batch
    values = features["record"] if isinstance(features, dict) else features
    record: bytes = values[0].numpy()
    return record


def counts(url: str) -> dict[str, Any]:
    """Return the counters of the store."""
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    main()
