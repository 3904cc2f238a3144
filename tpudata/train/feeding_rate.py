"""Rate of feeding, parsed from the value of a flag."""

from __future__ import annotations

import json
import math

from tpudata.devices.tpu_compiler.step_cost import FeedingRate
from tpudata.errors import UsageError
from tpudata.storage import storage_for


def read_feeding_rate(text: str, flag: str) -> FeedingRate:
    """Return the rate of a flag: records per second, or the path of a report of `tpudata bench --json`.

    Args:
        text: a number, or a path.
        flag: the flag, for messages.

    Raises:
        UsageError: the value is neither a number above 0 nor the path of a report.
        StorageError: the file cannot be read.
    """
    try:
        rate = float(text)
    except ValueError:
        return _read_report(text, flag)
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"{flag}: {text!r} is not a rate (expected records a second, above 0). Pass a measured one.")
    return FeedingRate(rate)


def _read_report(path: str, flag: str) -> FeedingRate:
    """Return the rate of the last stage, which includes all other stages, in a report of `tpudata bench`.

    Raises:
        UsageError: the file is not a report of `tpudata bench --json`.
        StorageError: the file cannot be read.
    """
    content = storage_for(path).read(path)
    try:
        report = json.loads(content)
        last_stage = report["stages"][-1]
        rate, cpu_seconds = float(last_stage["records_per_second"]), float(last_stage["cpu_seconds_per_record"])
        cores = int(report["cores"])
        if not (0 < rate < math.inf and 0 <= cpu_seconds < math.inf and cores > 0):
            raise ValueError("no measurement has such numbers")
        return FeedingRate(rate, cpu_seconds, cores)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        raise UsageError(
            f"{flag}: {path} is not a report of tpudata bench (expected its JSON, with a rate above 0). Write it by:"
            " tpudata bench DIR --json."
        ) from None
