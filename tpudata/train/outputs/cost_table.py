"""Costs of compiled steps as a table for a terminal."""

from collections.abc import Callable, Sequence

from tpudata.console.tables import count_text, memory_text, table
from tpudata.devices.tpu_compiler.step_cost import FeedingRate, StepCost

_UNIT_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Name of each row, and the function that formats its cell for a step.
_ROWS: Sequence[tuple[str, Callable[[StepCost], str]]] = (
    ("records a step", lambda cost: count_text(cost.batch_size)),
    ("steps a loop", lambda cost: count_text(cost.loop_steps)),
    ("HBM: variables and batches", lambda cost: memory_text(cost.compiled.arguments)),
    ("HBM: temporaries", lambda cost: memory_text(cost.compiled.temporaries)),
    ("HBM: results and program", lambda cost: memory_text(cost.compiled.outputs + cost.compiled.code)),
    ("HBM: next batches", lambda cost: memory_text(cost.next_batches)),
    ("FLOPs", lambda cost: _format_number(cost.compiled.flops)),
    ("bytes read and written", lambda cost: f"{_format_number(cost.compiled.bytes_accessed)}B"),
    ("time at peak FLOP/s", lambda cost: _format_time(cost.computing_seconds)),
    ("time at peak bandwidth", lambda cost: _format_time(cost.memory_seconds)),
    ("a step takes at least", lambda cost: _format_time(cost.least_seconds)),
    ("records/s to feed", lambda cost: _format_rate(cost.records_per_second)),
    ("records/s a chip", lambda cost: _format_rate(cost.records_per_second / cost.tpu.chips)),
    ("records/s a host", lambda cost: _format_rate(cost.records_per_second / cost.tpu.hosts)),
)


def make_cost_table(costs: Sequence[StepCost], feeding: FeedingRate | None = None) -> str:
    """Return a table of the costs of steps on one slice, with a column for each mode; HBM, FLOPs and bytes are per device.

    Args:
        costs: the costs, at least one.
        feeding: measured rate of feeding, for rows that compare the costs with it; None to omit these rows.
    """
    first = costs[0]
    tpu, chip = first.tpu, first.tpu.chip
    chips_text, hosts_text = count_text(tpu.chips, "chip"), count_text(tpu.hosts, "host")
    rows = [("", *(cost.mode for cost in costs))]
    rows += [(name, *map(format_cost, costs)) for name, format_cost in _ROWS]
    if feeding is not None:
        rows += _make_feeding_rows(costs, feeding)
    return (
        f"{tpu.name}: {chips_text}, {hosts_text}; {count_text(tpu.replicas, 'device')}, each with"
        f" {memory_text(chip.device_hbm)} HBM, {_format_number(chip.device_flops)}FLOP/s,"
        f" {_format_number(chip.device_bandwidth)}B/s\n"
        f"compiled by {first.compiled.compiler}, {first.effort} effort\n{table(rows, right=range(1, len(rows[0])))}"
    )


def _make_feeding_rows(costs: Sequence[StepCost], feeding: FeedingRate) -> list[tuple[str, ...]]:
    """Return rows that compare a measured rate of feeding with what the steps need: a name, and a cell for each cost."""
    comparisons = [feeding.compare(cost) for cost in costs]
    origin = "" if feeding.cores is None else f", {count_text(feeding.cores, 'core')}"
    rows = [(f"records/s measured{origin}", *[_format_rate(feeding.records_per_second)] * len(costs))]
    if feeding.cpu_seconds_per_record is not None:
        core_counts = [comparison["host_cores"] for comparison in comparisons]
        rows.append(("cores a host to feed", *("-" if count is None else count_text(count) for count in core_counts)))
    rows.append(("waits for input", *(f"{comparison['waiting']:.0%} of the time" for comparison in comparisons)))
    return rows


def _format_number(number: float) -> str:
    """Return a number to three digits, and a space with the unit's prefix, such as "1.5 G" for 1.5e9."""
    for size, prefix in _UNIT_PREFIXES:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def _format_time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _format_rate(rate: float) -> str:
    # A step without work has no time, so that its batches are needed at an infinite rate.
    return f"{rate:,.0f}" if rate < 1e15 else "any"
