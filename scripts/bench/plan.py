"""Cost of planning many inputs, step by step: time, memory of a worker, and data in the shuffle.

    python scripts/bench/plan.py [--records 10000000] [--folder DIR]
    python scripts/bench/plan.py --pipeline [--records 10000000] [--workers 1]

The references are made up: class folders of 10,000 images of about 110 kB, with paths like ImageNet's. They take every step of a
conversion but the last, in which shards are written: listing, adding up, cutting, and grouping by shard; and the manifest is made.

Each step runs in a separate process, as on one worker of an engine, and its output is kept on disk: 100 bytes a reference in DIR, a
temporary folder by default. `--pipeline` runs the steps on the local runner, which keeps all references in memory. The result is
checked: every reference once, in order. Nothing here passes or fails on time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton
from sides import plan_steps as steps

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.planning.plan import Plan, SumTallies, make_plan
from beam_jobs.run.runner import new_pipeline, parse_beam_flags
from beam_jobs.steps.listing.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences
from beam_jobs.steps.listing.list_units import ListUnits
from beam_jobs.steps.shards.group_by_shard import GroupByShard

# Each with whether one worker alone takes it.
_STEPS = (
    ("list", steps.list_references, False),
    ("combine", steps.combine, False),
    ("add up", steps.add_up, True),
    ("plan", steps.plan, True),
    ("by run", steps.by_run, False),
    ("by shard", steps.by_shards, False),
    ("manifest", steps.manifest, True),
)


def main() -> None:
    """Run the steps, and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="references (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk with 100 bytes a reference")
    parser.add_argument("--pipeline", action="store_true", help="run the steps on the local runner")
    parser.add_argument("--workers", type=int, default=1, help="processes of the local runner (default %(default)s)")
    flags = parser.parse_args()
    if flags.pipeline:
        _run_pipeline(flags.records, flags.workers)
        return
    with tempfile.TemporaryDirectory(prefix="tpudata-plan-", dir=flags.folder) as folder:
        _run_steps(Path(folder), flags.records)


def _run_steps(folder: Path, records: int) -> None:
    print(f"{records:,} references\n")
    print(f"{'step':10} {'workers':8} {'CPU':>9} {'a reference':>12} {'peak':>9} {'grows by':>9}  passes on")
    for name, step, is_serial in _STEPS:
        # Spawned, so that a step's memory is not that of the one before.
        context = multiprocessing.get_context("spawn")
        results: Any = context.SimpleQueue()
        process = context.Process(target=_step, args=(step, folder, records, results))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{name}: exit code {process.exitcode}")
        seconds, before, peak, passed = results.get()
        what = "; ".join(
            f"{key}: {found.elements:,} of {found.size / 1e6:,.1f} MB{found.note and f' ({found.note})'}"
            for key, found in passed.items()
        )
        print(
            f"{name:10} {'one' if is_serial else 'any':8} {seconds:7.1f} s {seconds / records * 1e6:9.2f} us {peak:6.0f} MB"
            f" {peak - before:6.0f} MB  {what}",
            flush=True,
        )


def _step(step: Any, folder: Path, records: int, results: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    passed = step(folder, records)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    results.put((seconds, before.ru_maxrss / 1e3, after.ru_maxrss / 1e3, passed))


def _run_pipeline(records: int, workers: int) -> None:
    beam_options, _ = parse_beam_flags([], workers)
    pipeline, started = new_pipeline(beam_options), time.monotonic()
    source = steps.MadeUpFolders(steps.OPTIONS, records)
    units = pipeline | ListUnits(source, steps.OPTIONS)
    listed = (
        units.units
        | beam.Reshuffle()
        | beam.ParDo(ListReferences(source, steps.OPTIONS, ImageConverter().text_bytes)).with_outputs(
            TALLY, NAMES, SAMPLE, COUNTS, main="packs"
        )
    )
    tally = listed[TALLY] | beam.CombineGlobally(SumTallies())
    plan = AsSingleton(tally | "Plan" >> beam.Map(make_plan, {}, steps.OPTIONS, steps.OVERHEAD))
    shards = listed.packs | GroupByShard(plan) | "Count" >> beam.Map(steps.counted)
    _ = shards | "Collect" >> beam.combiners.ToList() | "Report" >> beam.Map(_report, plan, started)
    pipeline.run().wait_until_finish()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime
    print(f"{seconds:.0f} CPU seconds, {seconds / records * 1e6:.1f} us a reference")
    print(f"peak memory {usage.ru_maxrss / 1e3:.0f} MB, of the largest other process {children.ru_maxrss / 1e3:.0f} MB")


def _report(shards: list[tuple[int, int]], plan: Plan, started: float) -> None:
    records, sizes = sum(count for count, _ in shards), [size for _, size in shards]
    if records != plan.files or sum(sizes) != plan.bytes:
        raise SystemExit(f"{records} references came out of {plan.files}")
    print(f"{records:,} references of {sum(sizes) / 1e9:,.0f} GB in {len(shards):,} shards")
    print(f"of {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} MB, planned in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
