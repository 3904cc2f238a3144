"""JSON output of a conversion, for programs: `--json`. Sizes are bytes, durations seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.append.base import AppendResult
from beam_jobs.planning.plan import Plan
from tpudata.format import Manifest, Shard


def summarize_plan(plan: Plan) -> dict[str, Any]:
    """Return a summary of a plan: its inputs, by split the records, shards and estimated bytes, and the warnings."""
    splits = {
        name: {"records": split.record_count, "shards": split.shard_count, "bytes": split.estimated_bytes}
        for name, split in plan.splits.items()
    }
    return {
        "inputs": plan.input_count,
        "bytes": plan.bytes,
        "splits": splits,
        "warnings": _sort_warnings(plan.warnings),
    }


def summarize_result(manifest: Manifest, output: str, seconds: float) -> dict[str, Any]:
    """Return a summary of a result: the totals, by split the records, shards and bytes, the counts of inputs, and the warnings."""
    return {
        "output": output,
        "seconds": seconds,
        "records": manifest.records,
        "classes": manifest.labels,
        "splits": _summarize_splits({name: split.shards for name, split in manifest.splits.items()}),
        "rejected": dict(manifest.rejected),
        "ignored": manifest.source.ignored_files,
        "converted": dict(manifest.converted),
        "counts": dict(manifest.counts),
        "warnings": _sort_warnings(manifest.warnings),
    }


def summarize_append(result: AppendResult, output: str, seconds: float) -> dict[str, Any]:
    """Return a summary of an append: `summarize_result` with the records, splits and counts that were added.

    Classes and warnings are those of the whole dataset; `records_before` is the number of records before the append.
    """
    return summarize_result(result.after, output, seconds) | {
        "records": result.after.records - result.before.records,
        "records_before": result.before.records,
        "splits": _summarize_splits(result.new_shards),
        "rejected": result.count_new("rejected"),
        "converted": result.count_new("converted"),
        "counts": result.count_new("counts"),
    }


def _sort_warnings(warnings: Mapping[str, str]) -> list[str]:
    return [line for _, line in sorted(warnings.items())]


def _summarize_splits(splits: Mapping[str, Sequence[Shard]]) -> dict[str, dict[str, int]]:
    """Return the numbers of records, shards and bytes of each split."""
    return {
        name: {
            "records": sum(shard.records for shard in shards),
            "shards": len(shards),
            "bytes": sum(shard.bytes for shard in shards),
        }
        for name, shards in splits.items()
    }
