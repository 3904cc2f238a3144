"""The table that is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tpudata.console.tables import count_text, table

Row: TypeAlias = "tuple[str, ...]"
_HEADING = ("", "split", "records", "step", "loss", "accuracy", "seconds", "records/s")


def make_closing_row(
    action: str,
    split: str,
    num_records: int,
    step: int | None,
    seconds: float,
    loss: float | None = None,
    accuracy: float | None = None,
) -> Row:
    """Return a row of cells for the closing table, in the order of _HEADING; None is shown as "-".

    Args:
        action: what the run did, such as "train".
        split: split of the records, or "-".
        num_records: number of records.
        step: global step of the checkpoint, or None.
        seconds: time that the action took.
        loss: loss of the last step or of the evaluation, or None.
        accuracy: share of correct predictions, or None.
    """
    return (
        action,
        split,
        count_text(num_records),
        "-" if step is None else count_text(step),
        "-" if loss is None else f"{loss:.4f}",
        "-" if accuracy is None else f"{accuracy:.2%}",
        f"{seconds:.1f}",
        count_text(round(num_records / seconds)) if seconds > 0 else "-",
    )


def make_closing_table(rows: Sequence[Row], metrics: Mapping[str, Any]) -> str:
    """Return the table with its heading, followed by the metrics that have no column; an empty string without rows."""
    if not rows:
        return ""
    other_metrics = {
        name: metric for name, metric in metrics.items() if name not in ("loss", "global_step", "accuracy")
    }
    other_texts = [
        f"{name} {metric:.4f}" if isinstance(metric, float) else f"{name} {metric}"
        for name, metric in other_metrics.items()
    ]
    table_text = f"\n{table([_HEADING, *rows], right=range(2, len(_HEADING)))}\n"
    return f"{table_text}\nalso: {', '.join(other_texts)}\n" if other_texts else table_text
