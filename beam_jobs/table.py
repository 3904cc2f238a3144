"""What a conversion prints: its plan, and what it wrote."""

from __future__ import annotations

from collections.abc import Sequence

from beam_jobs.plan import Plan
from tpudata.format import Manifest, Shard
from tpudata.tables import bytes_text, count_text, table

_NUMBERS = (1, 2, 3, 4)


def plan_table(plan: Plan) -> str:
    """The shards of a plan, a line for every split."""
    rows = [("split", "records", "shards", "bytes", "about each")]
    for name, split in plan.splits.items():
        size = split.estimated_bytes
        rows.append(
            (
                name,
                count_text(split.records),
                count_text(split.count),
                bytes_text(size),
                bytes_text(size // split.count),
            )
        )
    head = f"{count_text(plan.files)} files, {bytes_text(plan.bytes)}"
    return f"{head}\n{table(rows, right=_NUMBERS)}"


def result_table(manifest: Manifest, output: str, seconds: float) -> str:
    """What was written, a line for every split, and how fast."""
    rows = [("split", "records", "shards", "bytes", "each")]
    for name, split in manifest.splits.items():
        rows.append(
            (
                name,
                count_text(split.records),
                count_text(len(split.shards)),
                bytes_text(split.bytes),
                _range(split.shards),
            )
        )
    rate = f"{count_text(round(manifest.records / seconds))} records/s, {bytes_text(int(manifest.source.bytes / seconds))}/s"
    head = f"{output}: {count_text(manifest.records)} records{_classes(manifest.labels)} in {seconds:.1f} s ({rate})"
    return f"{head}\n{table(rows, right=_NUMBERS)}"


def _classes(labels: int | None) -> str:
    return "" if labels is None else f", {count_text(labels)} classes"


def _range(shards: Sequence[Shard]) -> str:
    low, high = min(shard.bytes for shard in shards), max(shard.bytes for shard in shards)
    return bytes_text(low) if low == high else f"{bytes_text(low)} to {bytes_text(high)}"
