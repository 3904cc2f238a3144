"""Speed of `tpudata verify`: MB per CPU second, next to a plain loop that reads the same files and takes their CRC-32C.

    python scripts/bench/verify.py DIR [--rounds N]

DIR is a dataset; records of 100 kB are what images usually are. Both run in this process, in turn, and the best of several rounds
counts, because a machine is never quite idle. Prints ratios, and never fails on time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import google_crc32c

from tpudata.format import open_dataset, verify
from tpudata.images.check import find_image_problems

_CHUNK = 1 << 20


def main() -> None:
    """Measure both sides and print a table."""
    parser = argparse.ArgumentParser(description="Measures tpudata verify next to a plain read with CRC-32C.")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    dataset = open_dataset(flags.folder)
    shards = [shard for split in dataset.manifest.splits.values() for shard in split.shards]
    size = sum(shard.bytes for shard in shards)

    def read_plainly() -> None:
        # The plain loop: reads each shard in chunks, and compares its CRC-32C with the manifest's.
        for shard in shards:
            crc = 0
            with open(dataset.shard_path(shard), "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    crc = google_crc32c.extend(crc, chunk)
            if crc != shard.crc32c:
                raise SystemExit(f"{shard.name} is damaged")

    def run_verify() -> None:
        for defect in verify(flags.folder, example_check=find_image_problems):
            raise SystemExit(str(defect))

    seconds: dict[str, list[float]] = {"read + crc32c": [], "verify": []}
    for _ in range(flags.rounds):
        seconds["read + crc32c"].append(_measure_cpu(read_plainly))
        seconds["verify"].append(_measure_cpu(run_verify))
    best_seconds = {name: min(rounds) for name, rounds in seconds.items()}
    record_count = dataset.manifest.records
    print(f"{record_count:,} records of {size / record_count / 1000:.1f} kB, best of {flags.rounds} rounds, CPU time")
    for name, cpu in best_seconds.items():
        print(f"{name:<14} {size / cpu / 1e6:8,.0f} MB/s  {cpu / record_count * 1e6:8.1f} us a record")
    ratio = best_seconds["verify"] / best_seconds["read + crc32c"]
    print(f"verify takes {ratio:.1f} times the CPU of read + crc32c")


def _measure_cpu(function: Callable[[], None]) -> float:
    """Return the CPU time of a call in seconds."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
