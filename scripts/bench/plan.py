"""What planning many inputs takes, on one machine: time and peak memory, without a file.

    python scripts/bench/plan.py [--records 10000000] [--workers 1]

The references are made up: class folders of 10,000 images of about 110 kB, with paths like ImageNet's. They take every step of a
conversion but the last, in which shards are written: listing, adding up, cutting, and grouping by shard on the local runner. What
comes out is counted, and checked to be every reference once. Nothing here passes or fails on time.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import time
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.options import ConvertOptions
from beam_jobs.planning.plan import Plan, SumTallies, make_plan
from beam_jobs.references.labels import Labels
from beam_jobs.references.pack import Pack
from beam_jobs.references.reference import Reference
from beam_jobs.run.runner import new_pipeline, pipeline_options, run_pipeline
from beam_jobs.sources import Refuse, make_reference, raise_refusal
from beam_jobs.steps.group_by_shard import GroupByShard
from beam_jobs.steps.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences
from tpudata.format import Feature

_FOLDER_RECORDS = 10_000


@dataclasses.dataclass(frozen=True)
class MadeUpFolders:
    """A Source whose records are nowhere.

    Attributes:
        options: of the conversion.
        records: how many there are.
    """

    options: ConvertOptions
    records: int
    has_classes: bool = True
    several_labels: bool = False
    labels: Labels | None = None
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def units(self) -> range:
        """Return the first record of each folder."""
        return range(0, self.records, _FOLDER_RECORDS)

    def references(self, unit: int, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yield the references of one folder."""
        del ignored, refuse
        name = f"n{unit // _FOLDER_RECORDS:08d}"
        for number in range(unit, min(unit + _FOLDER_RECORDS, self.records)):
            key = f"{name}/{name}_{number}.JPEG"
            path, size = f"{self.options.input}/{key}", 60_000 + number * 7919 % 100_000
            yield make_reference(self.options, key, path=path, size=size, labels=(name,))


def main() -> None:
    """Run the steps, and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="references (default %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes of the local runner (default %(default)s)")
    flags = parser.parse_args()
    options = ConvertOptions("/data/imagenet/train", "/data/imagenet/shards")
    beam_options, _ = pipeline_options([], flags.workers)
    pipeline, started = new_pipeline(beam_options), time.monotonic()
    listed = (
        pipeline
        | beam.Create([[unit] for unit in enumerate(MadeUpFolders(options, flags.records).units())], reshuffle=True)
        | beam.ParDo(
            ListReferences(MadeUpFolders(options, flags.records), options, ImageConverter().text_bytes)
        ).with_outputs(TALLY, NAMES, SAMPLE, COUNTS, main="packs")
    )
    tally = listed[TALLY] | beam.CombineGlobally(SumTallies())
    plan = AsSingleton(tally | "Plan" >> beam.Map(make_plan, {}, options, 230))
    shards = listed.packs | GroupByShard(plan) | "Count" >> beam.Map(_counted)
    _ = shards | "Collect" >> beam.combiners.ToList() | "Report" >> beam.Map(_report, plan, started)
    run_pipeline(pipeline)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime
    print(f"{seconds:.0f} CPU seconds, {seconds / flags.records * 1e6:.1f} us a reference")
    print(f"peak memory {usage.ru_maxrss / 1e3:.0f} MB, of the largest other process {children.ru_maxrss / 1e3:.0f} MB")


def _counted(shard: tuple[tuple[str, int], Iterable[bytes]]) -> tuple[int, int]:
    """Check the order of a shard's references; return their number and bytes."""
    packs = [Pack.from_bytes(data) for data in shard[1]]
    positions = [position for pack in packs for position in pack.positions.tolist()]
    if positions != sorted(set(positions)):
        raise SystemExit(f"shard {shard[0]} is out of order")
    return len(positions), sum(int(pack.sizes.sum()) for pack in packs)


def _report(shards: list[tuple[int, int]], plan: Plan, started: float) -> None:
    records, sizes = sum(count for count, _ in shards), [size for _, size in shards]
    if records != plan.files or sum(sizes) != plan.bytes:
        raise SystemExit(f"{records} references came out of {plan.files}")
    print(f"{records:,} references of {sum(sizes) / 1e9:,.0f} GB in {len(shards):,} shards")
    print(f"of {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} MB, planned in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
