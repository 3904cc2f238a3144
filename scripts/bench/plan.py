"""Cost of planning many inputs, step by step: time, memory of a worker, and data in the shuffle.

    python scripts/bench/plan.py [--records 10000000] [--folder DIR]
    python scripts/bench/plan.py --pipeline [--records 10000000] [--workers 1]

The references are generated: class folders of 10,000 images of about 110 kB, with paths like ImageNet's. All steps of a conversion
run except the writing of shards: listing, adding up, planning, grouping by shard, and making the manifest.

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
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton
from sides import plan_steps as steps

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.planning.plan import Plan, SumTallies, make_plan
from beam_jobs.run.runner import new_pipeline, parse_beam_flags
from beam_jobs.steps.listing.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences
from beam_jobs.steps.listing.list_units import ListUnits
from beam_jobs.steps.shards.group_by_shard import GroupByShard

# Name and function of each step, and whether only one worker runs it.
_STEPS = (
    ("list", steps.list_references, False),
    ("combine", steps.combine, False),
    ("add up", steps.add_up, True),
    ("plan", steps.plan_shards, True),
    ("by run", steps.split_by_run, False),
    ("by shard", steps.split_runs_by_shard, False),
    ("manifest", steps.make_manifest, True),
)


def main() -> None:
    """Run the steps, and print their costs."""
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


class _StepCost(NamedTuple):
    """Cost of a step.

    Attributes:
        seconds: CPU seconds of its process.
        begin_mb: peak memory of the process before the step, in MB.
        peak_mb: peak memory after the step, in MB.
        outputs: its outputs by name.
    """

    seconds: float
    begin_mb: float
    peak_mb: float
    outputs: dict[str, steps.Output]


def _run_steps(folder: Path, record_count: int) -> None:
    """Run each step in a separate process, and print its cost; files in a folder are its inputs and outputs."""
    print(f"{record_count:,} references\n")
    print(f"{'step':10} {'workers':8} {'CPU':>9} {'a reference':>12} {'peak':>9} {'grows by':>9}  passes on")
    for name, step, is_serial in _STEPS:
        # Spawned, so that a step's memory does not include memory of the step before.
        context = multiprocessing.get_context("spawn")
        results: Any = context.SimpleQueue()
        process = context.Process(target=_measure_step, args=(step, folder, record_count, results))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{name}: exit code {process.exitcode}")
        cost: _StepCost = results.get()
        outputs = "; ".join(
            f"{key}: {output.element_count:,} of {output.size / 1e6:,.1f} MB{output.note and f' ({output.note})'}"
            for key, output in cost.outputs.items()
        )
        reference_us = cost.seconds / record_count * 1e6
        print(
            f"{name:10} {'one' if is_serial else 'any':8} {cost.seconds:7.1f} s {reference_us:9.2f} us {cost.peak_mb:6.0f} MB"
            f" {cost.peak_mb - cost.begin_mb:6.0f} MB  {outputs}",
            flush=True,
        )


def _measure_step(step: Any, folder: Path, record_count: int, results: Any) -> None:
    """Run a step in this process, and put its _StepCost into a queue."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    outputs = step(folder, record_count)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # `ru_maxrss` is in kB.
    results.put(_StepCost(seconds, before.ru_maxrss / 1e3, after.ru_maxrss / 1e3, outputs))


def _run_pipeline(record_count: int, workers: int) -> None:
    """Run the steps on the local runner, and print their cost together."""
    beam_options, _ = parse_beam_flags([], workers)
    pipeline, begin = new_pipeline(beam_options), time.monotonic()
    source = steps.GeneratedFolders(steps.OPTIONS, record_count)
    units = pipeline | ListUnits(source, steps.OPTIONS)
    listed = (
        units.units
        | beam.Reshuffle()
        | beam.ParDo(ListReferences(source, steps.OPTIONS, ImageConverter().extra_bytes)).with_outputs(
            TALLY, NAMES, SAMPLE, COUNTS, main="packs"
        )
    )
    tally = listed[TALLY] | beam.CombineGlobally(SumTallies())
    # `{}`: no ratios, so the content of records takes as many bytes in shards as in the input.
    plan = AsSingleton(tally | "Plan" >> beam.Map(make_plan, {}, steps.OPTIONS, steps.OVERHEAD))
    shards = listed.packs | GroupByShard(plan) | "Count" >> beam.Map(steps.count_references)
    _ = shards | "Collect" >> beam.combiners.ToList() | "Report" >> beam.Map(_report, plan, begin)
    pipeline.run().wait_until_finish()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime
    print(f"{seconds:.0f} CPU seconds, {seconds / record_count * 1e6:.1f} us a reference")
    print(f"peak memory {usage.ru_maxrss / 1e3:.0f} MB, of the largest other process {children.ru_maxrss / 1e3:.0f} MB")


def _report(shards: list[tuple[int, int]], plan: Plan, begin: float) -> None:
    """Check that shards have all references of a plan, and print their sizes and the time since `begin`.

    Args:
        shards: number and bytes of the references of each shard.
        plan: the plan, whose `input_count` is the number of its references.
        begin: time at which the pipeline began.
    """
    record_count, sizes = sum(count for count, _ in shards), [size for _, size in shards]
    if record_count != plan.input_count or sum(sizes) != plan.bytes:
        raise SystemExit(f"{record_count} references came out of {plan.input_count}")
    print(f"{record_count:,} references of {sum(sizes) / 1e9:,.0f} GB in {len(shards):,} shards")
    print(f"of {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} MB, planned in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
