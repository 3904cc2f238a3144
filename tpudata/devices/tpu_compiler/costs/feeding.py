"""Measured rate of feeding, compared with what a compiled step takes."""

import dataclasses
import json
import math
from typing import Any

from tpudata.devices.tpu_compiler.costs.step_cost import StepCost
from tpudata.errors import UsageError
from tpudata.storage import storage_for


@dataclasses.dataclass(frozen=True)
class FeedingRate:
    """Measured rate of feeding on one host.

    Attributes:
        records_per_second: the rate.
        cpu_seconds_per_record: CPU time of a record; None if it was not measured.
        cores: number of cores of the machine that measured it; None if unknown.
    """

    records_per_second: float
    cpu_seconds_per_record: float | None = None
    cores: int | None = None

    def compare(self, cost: StepCost) -> dict[str, Any]:
        """Return what a step takes of it on each host, as a JSON object.

        Returns:
            `records_per_second` that was measured, `needed` on each host, `host_cores` that are enough for it if all work scales
            with cores (None if unknown), `is_input_bound`, and `waiting`, the share of the time that steps would wait at the
            measured rate if they take their lower bound.
        """
        needed = cost.records_per_second / cost.tpu.hosts
        cpu = self.cpu_seconds_per_record
        return {
            "records_per_second": self.records_per_second,
            "measured_on_cores": self.cores,
            "needed": needed if math.isfinite(needed) else None,
            "host_cores": None if cpu is None or not math.isfinite(needed) else math.ceil(needed * cpu),
            "is_input_bound": self.records_per_second < needed,
            "waiting": max(0.0, 1 - self.records_per_second / needed),
        }


def read_feeding_rate(text: str, where: str) -> FeedingRate:
    """Return the rate that a text gives: records a second, or the file of `tpudata bench --json`.

    Args:
        text: a number, or a path.
        where: the flag, for messages.

    Raises:
        UsageError: it is neither.
        StorageError: the file cannot be read.
    """
    try:
        rate = float(text)
    except ValueError:
        return _rate_of_file(text, where)
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"{where}: {text!r} is not a rate (expected records a second, above 0). Pass a measured one.")
    return FeedingRate(rate)


def _rate_of_file(path: str, where: str) -> FeedingRate:
    content = storage_for(path).read(path)
    try:
        report = json.loads(content)
        whole = report["stages"][-1]
        return FeedingRate(
            float(whole["records_per_second"]), float(whole["cpu_seconds_per_record"]), int(report["cores"])
        )
    except (ValueError, TypeError, LookupError):
        raise UsageError(
            f"{where}: {path} is not a report of tpudata bench (expected its JSON). Write it by: tpudata bench DIR --json."
        ) from None
