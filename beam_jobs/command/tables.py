"""Text output of a conversion: its plan, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from beam_jobs.append.base import AppendResult
from beam_jobs.planning.plan import Plan
from tpudata.console.tables import bytes_text, count_text, table, warning_texts
from tpudata.format import Manifest, Shard
from tpudata.format.layout import REJECTS_FOLDER

_NUMBERS = (1, 2, 3, 4)


def plan_table(plan: Plan, unit: str = "file", *, has_duplicates: bool = False) -> str:
    """Return the shards of a plan as text, a line for every split.

    Args:
        plan: the plan.
        unit: the word for an input.
        has_duplicates: whether the plan counts duplicates, which the run will skip.
    """
    if not plan.splits:
        return "nothing new: 0 records would be added"
    rows = [("split", "records" if unit == "file" else f"{unit}s", "shards", "bytes", "about each")]
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
    head = f"{count_text(plan.files, unit)}, {bytes_text(plan.bytes)}"
    note = ["including duplicates: --dedup finds them when it has read all documents"] if has_duplicates else []
    return "\n".join([head, table(rows, right=_NUMBERS), *warning_texts(plan.warnings), *note])


def result_table(manifest: Manifest, output: str, seconds: float, ignored: str = "") -> str:
    """Return the result as text: a line for every split, the speed, and the rejected, ignored and re-encoded inputs.

    Args:
        manifest: manifest of the dataset.
        output: folder of the dataset.
        seconds: duration of the run.
        ignored: reason for ignored files, printed after their number; by default their names.
    """
    rate = f"{count_text(round(manifest.records / seconds), 'record')}/s, {bytes_text(int(manifest.source.bytes / seconds))}/s"
    head = f"{output}: {count_text(manifest.records, 'record')}{_format_classes(manifest.labels)} in {seconds:.1f} s ({rate})"
    splits = _format_splits({name: split.shards for name, split in manifest.splits.items()})
    counts = _format_counts(output, manifest.rejected, manifest.source.ignored_files, manifest.converted, ignored)
    counts += _format_text_counts(manifest.counts)
    return "\n".join([head, splits, *counts, *warning_texts(manifest.warnings)])


def append_table(added: AppendResult, output: str, seconds: float) -> str:
    """Return the result of an append as text: a line for every split, and records that are no longer in the input."""
    before, after = added.before, added.after
    new = {
        name: split.shards[len(before.splits[name].shards) if name in before.splits else 0 :]
        for name, split in after.splits.items()
    }
    records = after.records - before.records
    stock = f"{count_text(before.records)} were there"
    if added.stored_inputs is not None and added.stored_inputs < before.records:
        stock += f", {count_text(before.records - added.stored_inputs)} of them no longer in the input (they stay)"
    if after == before:
        return f"{output}: nothing new; {stock}; nothing was changed"
    rate = f"{count_text(round(records / seconds), 'record')}/s"
    head = f"{output}: {count_text(records, 'record')} added in {seconds:.1f} s ({rate}); {stock}{_format_classes(after.labels)}"
    splits = [_format_splits({name: shards for name, shards in new.items() if shards})] if records else []
    rejected, converted = (
        Counter(counts_after) - Counter(counts_before)
        for counts_after, counts_before in ((after.rejected, before.rejected), (after.converted, before.converted))
    )
    counts = _format_counts(output, rejected, after.source.ignored_files, converted)
    counts += _format_text_counts(Counter(after.counts) - Counter(before.counts))
    new_warnings = {kind: line for kind, line in after.warnings.items() if before.warnings.get(kind) != line}
    return "\n".join([head, *splits, *counts, *warning_texts(new_warnings)])


def _format_splits(splits: Mapping[str, Sequence[Shard]]) -> str:
    rows = [("split", "records", "shards", "bytes", "each")]
    for name, shards in splits.items():
        records, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
        rows.append((name, count_text(records), count_text(len(shards)), bytes_text(size), _format_range(shards)))
    return table(rows, right=_NUMBERS)


def _format_classes(labels: int | None) -> str:
    return "" if labels is None else f", {count_text(labels, 'class', 'classes')}"


def _format_counts(
    output: str, rejected: Mapping[str, int], ignored: int, converted: Mapping[str, int], why_ignored: str = ""
) -> list[str]:
    """Return the lines for rejected, ignored and re-encoded inputs, if there are any."""
    lines = []
    if rejected:
        lines.append(f"rejected    {_format_reasons(rejected)}; listed in {output}/{REJECTS_FOLDER}/")
    if ignored:
        reason = why_ignored or ("by its name" if ignored == 1 else "by their names")
        lines.append(f"ignored     {count_text(ignored)} {reason}")
    if converted:
        lines.append(f"re-encoded  {_format_reasons(converted)}")
    return lines


def _format_text_counts(counts: Mapping[str, int]) -> list[str]:
    """Return the lines for documents, tokens and records in quarantine, if there are any."""
    lines = []
    if counts.get("quarantined"):
        lines.append(f"omitted     {count_text(counts['quarantined'], 'record')} in quarantine")
    if "documents" in counts:
        doubles = counts.get("duplicates", 0)
        omitted = f"; {count_text(doubles, 'duplicate')} omitted" if doubles else ""
        lines.append(f"documents   {count_text(counts['documents'])}{omitted}")
    if "tokens" in counts:
        tokens, padding = counts["tokens"], counts.get("padding", 0)
        share = f", {tokens / (tokens + padding):.2%} of all places; the rest is padding" if padding else ""
        dropped = f"; {count_text(counts['dropped'])} cut off" if counts.get("dropped") else ""
        lines.append(f"tokens      {count_text(tokens)}{share}{dropped}")
    if counts.get("unknown"):
        unknown = counts["unknown"] / (counts["tokens"] + counts.get("dropped", 0))
        lines.append(
            f"unknown     {count_text(counts['unknown'], 'token')} for text that the tokenizer does not know, {unknown:.2%}"
        )
    return lines


def _format_reasons(counts: Mapping[str, int]) -> str:
    sorted_counts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    # A reason may end with its fix, a sentence.
    reasons = (f"{count_text(count)} {reason.rstrip('.')}" for reason, count in sorted_counts)
    return f"{count_text(sum(counts.values()))}: {', '.join(reasons)}"


def _format_range(shards: Sequence[Shard]) -> str:
    low, high = min(shard.bytes for shard in shards), max(shard.bytes for shard in shards)
    return bytes_text(low) if low == high else f"{bytes_text(low)} to {bytes_text(high)}"
