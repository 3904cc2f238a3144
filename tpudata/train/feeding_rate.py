"""A rate of feeding, as a flag gives it."""

from __future__ import annotations

import json
import math

from tpudata.devices.tpu_compiler.step_cost import FeedingRate
from tpudata.errors import UsageError
from tpudata.storage import storage_for


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
