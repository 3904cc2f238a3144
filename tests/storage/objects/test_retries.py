"""Waits between retries, whose lengths no store shows."""

from __future__ import annotations

import logging
import random
import time

import pytest

from tpudata.storage.objects.errors import TimeLimitError
from tpudata.storage.objects.retries import Retries, RetryPolicy


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, each the longest that may be drawn; the clock moves by them alone."""
    slept: list[float] = []
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1000 + sum(slept))
    return slept


def fail() -> None:
    raise OSError("busy")


def test_waits_twice_as_long_each_time_up_to_the_longest_wait_and_the_limit(waits: list[float]) -> None:
    policy = RetryPolicy(first_wait=1, longest_wait=10, limit=180).replace_limit(45)
    with pytest.raises(TimeLimitError) as caught:
        Retries("memory", lambda: policy, lambda _: True).run(fail)
    assert waits == [2, 4, 8, 10, 10, 10]
    assert isinstance(caught.value.__cause__, OSError)


def test_raises_a_permanent_error_at_once(waits: list[float]) -> None:
    with pytest.raises(OSError, match="busy"):
        Retries("memory", RetryPolicy, lambda _: False).run(fail)
    assert waits == []


def test_warns_of_a_long_failure_at_intervals(waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    policy = RetryPolicy(first_wait=4, longest_wait=8, limit=60, warn_after=20)
    with caplog.at_level(logging.INFO, "tpudata"), pytest.raises(TimeLimitError):
        Retries("memory", lambda: policy, lambda _: True).run(fail)
    levels = ["INFO", "INFO", "INFO", "WARNING", "INFO", "INFO", "WARNING", "INFO"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (level, f"memory: OSError, for {8 * n} s; trying again, for 60 s in all.") for n, level in enumerate(levels)
    ]
