"""Text output of a conversion: its plan, and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from beam_jobs.append.base import AppendResult
from beam_jobs.planning.plan import Plan
from tpudata.console.tables import bytes_text, count_text, table, warning_texts
from tpudata.format import Manifest, Shard
from tpudata.format.layout import REJECTS_FOLDER

# Indices of the columns of numbers, which are aligned right.
_NUMBER_COLUMNS = (1, 2, 3, 4)


def format_plan(plan: Plan, input_noun: str = "file", *, includes_duplicates: bool = False) -> str:
    """Return the shards of a plan as text, with a line for every split; a single line if an append would add nothing.

    Args:
        plan: plan whose shards are described.
        input_noun: the word for an input, such as `"document"`.
        includes_duplicates: whether the plan counts any duplicates, which the run will omit.
    """
    if not plan.splits:
        return "nothing new: 0 records would be added"
    # A plan counts inputs. A file becomes one record, but a document may become several, or a part of one.
    rows = [("split", "records" if input_noun == "file" else f"{input_noun}s", "shards", "bytes", "about each")]
    for name, split in plan.splits.items():
        size = split.estimated_bytes
        rows.append(
            (
                name,
                count_text(split.record_count),
                count_text(split.shard_count),
                bytes_text(size),
                bytes_text(size // split.shard_count),
            )
        )
    first_line = f"{count_text(plan.input_count, input_noun)}, {bytes_text(plan.bytes)}"
    notes = ["including duplicates: --dedup finds them when it has read all documents"] if includes_duplicates else []
    return "\n".join([first_line, table(rows, right=_NUMBER_COLUMNS), *warning_texts(plan.warnings), *notes])


def format_result(manifest: Manifest, output: str, seconds: float, why_ignored: str = "") -> str:
    """Return the result as text: totals and speed, a line for every split, the counts of inputs and tokens, and the warnings.

    Args:
        manifest: manifest of the dataset.
        output: folder of the dataset.
        seconds: duration of the run.
        why_ignored: reason for ignored files, printed after their number; empty for files ignored by their names.
    """
    rate = f"{count_text(round(manifest.records / seconds), 'record')}/s, {bytes_text(int(manifest.source.bytes / seconds))}/s"
    first_line = f"{output}: {count_text(manifest.records, 'record')}{_format_classes(manifest.labels)} in {seconds:.1f} s ({rate})"
    splits = _format_splits({name: split.shards for name, split in manifest.splits.items()})
    lines = _format_counts(output, manifest.rejected, manifest.source.ignored_files, manifest.converted, why_ignored)
    lines += _format_text_counts(manifest.counts)
    return "\n".join([first_line, splits, *lines, *warning_texts(manifest.warnings)])


def format_append(result: AppendResult, output: str, seconds: float) -> str:
    """Return the result of an append as text: one line if nothing was new, otherwise the lines of `format_result`.

    They count what was added, except for classes, which are those of the whole dataset, and ignored files. The first line also has
    the number of records before the append.
    """
    before, after = result.before, result.after
    added_count = after.records - before.records
    earlier_text = f"{count_text(before.records)} were there"
    if result.stored_count is not None and result.stored_count < before.records:
        missing_count = before.records - result.stored_count
        earlier_text += f", {count_text(missing_count)} of them no longer in the input (they stay)"
    if after == before:
        return f"{output}: nothing new; {earlier_text}; nothing was changed"
    rate = f"{count_text(round(added_count / seconds), 'record')}/s"
    first_line = (
        f"{output}: {count_text(added_count, 'record')} added in {seconds:.1f} s ({rate}); {earlier_text}"
        f"{_format_classes(after.labels)}"
    )
    splits = [_format_splits(result.new_shards)] if added_count else []
    lines = _format_counts(
        output, result.count_new("rejected"), after.source.ignored_files, result.count_new("converted")
    )
    lines += _format_text_counts(result.count_new("counts"))
    return "\n".join([first_line, *splits, *lines, *warning_texts(result.new_warnings)])


def _format_splits(splits: Mapping[str, Sequence[Shard]]) -> str:
    """Return a table of shards with a line for each split."""
    rows = [("split", "records", "shards", "bytes", "each")]
    for name, shards in splits.items():
        record_count, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
        rows.append((name, count_text(record_count), count_text(len(shards)), bytes_text(size), _format_range(shards)))
    return table(rows, right=_NUMBER_COLUMNS)


def _format_classes(class_count: int | None) -> str:
    return "" if class_count is None else f", {count_text(class_count, 'class', 'classes')}"


def _format_counts(
    output: str, rejected: Mapping[str, int], ignored_count: int, converted: Mapping[str, int], why_ignored: str = ""
) -> list[str]:
    """Return the lines for rejected, ignored and re-encoded inputs, if there are any.

    Args:
        output: folder of the dataset.
        rejected: number of rejected inputs by reason.
        ignored_count: number of ignored files.
        converted: number of re-encoded inputs by reason.
        why_ignored: reason for ignored files, printed after their number; empty for files ignored by their names.
    """
    lines = []
    if rejected:
        lines.append(f"rejected    {_format_reasons(rejected)}; listed in {output}/{REJECTS_FOLDER}/")
    if ignored_count:
        reason = why_ignored or ("by its name" if ignored_count == 1 else "by their names")
        lines.append(f"ignored     {count_text(ignored_count)} {reason}")
    if converted:
        lines.append(f"re-encoded  {_format_reasons(converted)}")
    return lines


def _format_text_counts(counts: Mapping[str, int]) -> list[str]:
    """Return the lines for records in quarantine, documents, tokens and unknown tokens, if there are any."""
    lines = []
    if counts.get("quarantined"):
        lines.append(f"omitted     {count_text(counts['quarantined'], 'record')} in quarantine")
    if "documents" in counts:
        duplicate_count = counts.get("duplicates", 0)
        omitted_text = f"; {count_text(duplicate_count, 'duplicate')} omitted" if duplicate_count else ""
        lines.append(f"documents   {count_text(counts['documents'])}{omitted_text}")
    if "tokens" in counts:
        token_count, padding_count = counts["tokens"], counts.get("padding", 0)
        share = token_count / (token_count + padding_count) if padding_count else None
        share_text = "" if share is None else f", {share:.2%} of all token positions; the rest is padding"
        dropped_text = f"; {count_text(counts['dropped'])} cut off" if counts.get("dropped") else ""
        lines.append(f"tokens      {count_text(token_count)}{share_text}{dropped_text}")
    if counts.get("unknown"):
        unknown_share = counts["unknown"] / (counts["tokens"] + counts.get("dropped", 0))
        lines.append(
            f"unknown     {count_text(counts['unknown'], 'token')} for text that the tokenizer does not know,"
            f" {unknown_share:.2%}"
        )
    return lines


def _format_reasons(counts: Mapping[str, int]) -> str:
    """Return the total of inputs, and the number for each reason, the most frequent first: `3: 2 truncated, 1 not an image`."""
    sorted_reasons = sorted(counts, key=lambda reason: (-counts[reason], reason))
    # A reason may end with its fix, a sentence, whose full stop is removed.
    texts = (f"{count_text(counts[reason])} {reason.rstrip('.')}" for reason in sorted_reasons)
    return f"{count_text(sum(counts.values()))}: {', '.join(texts)}"


def _format_range(shards: Sequence[Shard]) -> str:
    """Return the sizes of the smallest and the largest shard as text: `98.1 MB to 101.3 MB`, or one size if both are equal."""
    low, high = min(shard.bytes for shard in shards), max(shard.bytes for shard in shards)
    return bytes_text(low) if low == high else f"{bytes_text(low)} to {bytes_text(high)}"
