"""Tests of tpudata.storage.limits."""

import math

import pytest

from tpudata.errors import UsageError
from tpudata.storage.limits import RequestLimits


@pytest.mark.parametrize("retry_seconds", [0, -1.0, math.inf, math.nan])
def test_rejects_retries_without_a_finite_time(retry_seconds: float) -> None:
    message = rf"--retry-seconds: out of range \(got {retry_seconds:g}, expected a finite number above 0\)"
    with pytest.raises(UsageError, match=message):
        RequestLimits(retry_seconds=retry_seconds)
