"""Compare random access by RecordSource with grain's ArrayRecordDataSource: records per CPU second and per second.

    pip install array_record grain
    python scripts/bench/source.py [--records N] [--bytes N] [--rounds N]

Writes the same random records to a temporary folder twice: as a dataset, and as an ArrayRecord file with groups of one record,
as grain advises. One process then reads each source: single records in random order, batches of 64 random records by
`__getitems__`, and records in shuffled order by grain's DataLoader. Records come as bytes; both sources verify checksums.
Prints the median of the rounds and ratios, and never fails on time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import grain.python as grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from tpudata import RecordSource
from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard

BATCH = 64


def write(folder: str, count: int, size: int) -> tuple[str, str]:
    """Write the records in both formats; return the dataset's folder and the ArrayRecord file."""
    random = np.random.default_rng(0)
    records = [encode_example({"image_raw": random.bytes(size), "label": 1}) for _ in range(count)]
    shard = write_shard(folder, shard_name("train", 0, 1), records)
    features = (Feature("image_raw", "bytes", "uint8", (size, 1, 1), "raw"), Feature("label", "int64", "int64"))
    source = Source("random bytes", count, bytes=0, fingerprint="0")
    write_metadata(folder, Manifest("raw", {"train": Split((shard,))}, features, source, "bench"), None)
    path = f"{folder}/train.array_record"
    writer = ArrayRecordWriter(path, "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return folder, path


def one_by_one(source: Any, order: Sequence[int]) -> None:
    """Read records, each with one call."""
    for number in order:
        source[number]


def in_batches(source: Any, order: Sequence[int]) -> None:
    """Read records in batches, each with one call."""
    for first in range(0, len(order), BATCH):
        source.__getitems__(order[first : first + BATCH])


def by_grain(source: Any, order: Sequence[int]) -> None:
    """Read as many records as `order` has, in a shuffled order of grain's DataLoader, in this process."""
    sampler = grain.IndexSampler(len(order), grain.NoSharding(), shuffle=True, seed=0, num_epochs=1)
    for _ in grain.DataLoader(data_source=source, sampler=sampler, worker_count=0):
        pass


def measure(read: Callable[[Any, Sequence[int]], None], source: Any, order: Sequence[int]) -> tuple[float, float]:
    """Return the CPU time and the elapsed time of reading a record, in seconds.

    Args:
        read: function that reads records of a source in an order.
        source: the source.
        order: numbers of the records.
    """
    cpu, clock = time.process_time(), time.perf_counter()
    read(source, order)
    return (time.process_time() - cpu) / len(order), (time.perf_counter() - clock) / len(order)


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description="Compare RecordSource with grain's ArrayRecordDataSource.")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=10_000, help="size of a record")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset, path = write(folder, flags.records, flags.bytes)
        sources = {
            "RecordSource": RecordSource(dataset, "train", decode=None),
            "ArrayRecord": grain.ArrayRecordDataSource(path),
        }
        order = np.random.default_rng(1).permutation(flags.records).tolist()
        print(
            f"{flags.records:,} records of {flags.bytes:,} bytes; thousand records per CPU second, per second, and CPU ratio"
        )
        for read in (one_by_one, in_batches, by_grain):
            costs: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
            for _ in range(flags.rounds):
                for name, source in sources.items():
                    costs[name].append(measure(read, source, order))
            medians = {
                name: [statistics.median(seconds) for seconds in zip(*source_costs, strict=True)]
                for name, source_costs in costs.items()
            }
            base_cpu, _ = medians["ArrayRecord"]
            for name, (cpu, clock) in medians.items():
                rates = f"{1e-3 / cpu:8.1f} {1e-3 / clock:8.1f} {base_cpu / cpu:6.2f}"
                print(f"  {read.__name__:12} {name:14} {rates}", flush=True)


if __name__ == "__main__":
    main()
