"""Text output of `tpudata bench`."""

from __future__ import annotations

from typing import Any

from tpudata.console.tables import bytes_text, count_text, table

# Share of the cores above which other programs are mentioned.
_NOTED_SHARE = 0.1


def format_report(report: dict[str, Any]) -> str:
    """Return the report of `tpudata.cli.bench.command.measure` as a table, with the conclusions as sentences."""
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
    pipeline = report["stages"][-1]
    order = "training order" if report["training"] else "in order, repeated"
    limiting_stage = next(stage for stage in report["stages"] if stage["name"] == report["limit"])
    cost_name = "CPU time" if report["waits_for"] == "cores" else "time"
    conclusions = [
        f"{count_text(round(pipeline['records_per_second']))} records/s are fed. The limit is the stage"
        f" {limiting_stage['does'].removeprefix('+ ')!r}: {limiting_stage['share']:.0%} of the {cost_name}.",
        report["advice"],
    ]
    if pipeline["other_cores"] > _NOTED_SHARE * report["cores"]:
        conclusions.append(
            f"Other programs kept {pipeline['other_cores']:.1f} cores busy: without them, more records would be fed."
        )
    if report["is_held"]:
        conclusions.insert(0, "All records fit the shuffle's window: they are read once, and then fed from memory.")
    parts = [
        f"{report['path']}: split {report['split']}, {order}, batches of {count_text(report['batch_size'])}",
        table(rows, right=range(1, 6)),
        "\n".join(conclusions),
    ]
    if report["storage"] is not None:
        parts.append(_format_storage(report["storage"]))
    if report["step"] is not None:
        parts.append(_format_step(report["step"], pipeline["records_per_second"]))
    if report["tpu"] is not None:
        parts.append(_format_tpu(report["tpu"]))
    return "\n\n".join(parts)


def _format_step(step: dict[str, Any], fed_rate: float) -> str:
    """Return sentences that compare the records that a step takes with the records that are fed.

    Args:
        step: the entry `step` of the report, see `tpudata.cli.bench.command.measure`.
        fed_rate: records per second that the whole input_fn feeds.
    """
    needed_rate = step["records_per_second"]
    demand = f"A step of {step['milliseconds']:g} ms takes {count_text(round(needed_rate))} records/s"
    if not step["is_input_bound"]:
        text = f"{demand}: training is not input-bound, since {fed_rate / needed_rate:.3g} times that rate is fed."
        return text + _format_load(step["storage"])
    text = f"{demand}: training is input-bound, and the device waits {step['waiting']:.0%} of the time."
    if step["cores"] is not None:
        text += f" It would take about {count_text(step['cores'], 'core')}."
    return text + _format_load(step["storage"])


def _format_storage(storage: dict[str, Any]) -> str:
    """Return sentences on the rates of an object store, see `StorageRates.to_json`."""
    return (
        f"The store answers after {storage['latency_seconds'] * 1e3:.3g} ms. One stream reads"
        f" {_format_rate(storage['stream_bytes_per_second'])}, {count_text(storage['streams'], 'stream')} read"
        f" {_format_rate(storage['bytes_per_second'])}, for {storage['cpu_seconds_per_gigabyte']:.2g} CPU seconds a GB."
    )


def _format_tpu(tpu: dict[str, Any]) -> str:
    """Return sentences that compare the records that a TPU takes with the records that are fed.

    Args:
        tpu: the entry `tpu` of the report, see `tpudata.cli.bench.command.measure`.
    """
    if tpu["needed"] is None:
        return f"A {tpu['name']} has no work in a step, so its rate has no bound."
    host = "it" if tpu["hosts"] == 1 else f"each of its {tpu['hosts']} hosts"
    demand = (
        f"A {tpu['name']} takes at most {count_text(round(tpu['needed']))} records/s from {host}, since a step lasts at least"
        f" {tpu['least_seconds'] * 1e3:.3g} ms ({tpu['compiler']}). Feeding them takes about"
        f" {count_text(tpu['host_cores'], 'core')}."
    )
    if tpu["is_input_bound"]:
        supply = f"At the rate measured here, the TPU would wait {tpu['waiting']:.0%} of the time."
    else:
        supply = "This machine feeds at least that rate."
    return f"{demand} {supply}{_format_load(tpu['storage'])}"


def _format_load(load: dict[str, Any] | None) -> str:
    """Return a line break and a line on the load on an object store, see `StorageRates.predict_load`; empty for None."""
    if load is None:
        return ""
    return (
        f"\nThat is {_format_rate(load['bytes_per_second'])} from the store: about"
        f" {count_text(load['streams'], 'stream')} (reading=tpudata.Reading(streams={load['streams']})), which take"
        f" {bytes_text(load['memory_bytes'])} of memory, and {count_text(load['cores'], 'core')} for reading alone."
    )


def _format_rate(rate: float) -> str:
    return f"{bytes_text(round(rate))}/s"
