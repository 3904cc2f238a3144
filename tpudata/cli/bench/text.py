"""Text output of `tpudata bench`."""

from __future__ import annotations

from typing import Any

from tpudata.console.tables import bytes_text, count_text, counted, table

# Share of the cores above which other programs are mentioned.
_NOTED_SHARE = 0.1


def report_text(report: dict[str, Any]) -> str:
    """Return the object that `--json` prints as a table, with the conclusions as sentences."""
    rows = [["stage", "records/s", "as stored", "cores busy", "CPU a record", "share"]]
    rows += [
        [
            stage["does"],
            count_text(round(stage["records_per_second"])),
            f"{bytes_text(round(stage['bytes_per_second']))}/s",
            f"{stage['cores']:.1f} of {report['cores']}",
            f"{stage['cpu_seconds_per_record'] * 1e6:,.1f} us",
            "once" if stage["share"] is None else f"{stage['share']:.0%}",
        ]
        for stage in report["stages"]
    ]
    whole = report["stages"][-1]
    how = "training order" if report["training"] else "in order, repeated"
    limiting = next(stage for stage in report["stages"] if stage["name"] == report["limit"])
    of = "CPU time" if report["waits_for"] == "cores" else "time"
    found = (
        f"{count_text(round(whole['records_per_second']))} records/s are fed. The limit is the stage"
        f" {limiting['does'].removeprefix('+ ')!r}: {limiting['share']:.0%} of the {of}.\n{report['advice']}"
    )
    if whole["other_cores"] > _NOTED_SHARE * report["cores"]:
        found += (
            f"\nOther programs kept {whole['other_cores']:.1f} cores busy: without them, more records would be fed."
        )
    if report["is_held"]:
        found = "All records fit the shuffle's window: they are read once, and then fed from memory.\n" + found
    parts = [
        f"{report['path']}: split {report['split']}, {how}, batches of {count_text(report['batch_size'])}",
        table(rows, right=range(1, 6)),
        found,
    ]
    if report["step"] is not None:
        parts.append(_step_text(report["step"], whole["records_per_second"]))
    return "\n\n".join(parts)


def _step_text(step: dict[str, Any], fed: float) -> str:
    needed = step["records_per_second"]
    takes = f"A step of {step['milliseconds']:g} ms takes {count_text(round(needed))} records/s"
    if not step["is_input_bound"]:
        return f"{takes}: training is not input-bound, {fed / needed:.3g} times as many are fed."
    text = f"{takes}: training is input-bound, and the device waits {step['waiting']:.0%} of the time."
    if step["cores"] is not None:
        text += f" It would take about {counted(step['cores'], 'core')}."
    return text
