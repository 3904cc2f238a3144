"""Request limits that steps apply in their workers.

A worker in the program's own process may end a step at any point, so tests call the step directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from apache_beam.internal import pickler

from beam_jobs.steps.limited_step import LimitedStep, apply_limits, holds_limits
from tpudata.storage import RequestLimits, request_limits

LIMITS = RequestLimits(read_threads=5, retry_seconds=9)


class Step(LimitedStep):
    """Yields the limits that hold, and fails at a negative number."""

    @holds_limits
    def process(self, count: int) -> Iterator[RequestLimits]:
        if count < 0:
            raise ValueError("negative")
        for _ in range(count):
            yield request_limits()


def test_limits_hold_only_while_an_element_is_processed() -> None:
    step = Step(LIMITS)
    # No teardown follows: a worker in the program's own process may do without.
    step.setup()
    assert list(step.process(2)) == [LIMITS, LIMITS]
    assert request_limits() == RequestLimits()


def test_limits_end_after_an_error_and_after_an_abandoned_output() -> None:
    step = Step(LIMITS)
    with pytest.raises(ValueError, match="negative"):
        list(step.process(-1))
    outputs = iter(step.process(2))
    assert next(outputs) == LIMITS
    del outputs
    assert request_limits() == RequestLimits()


def test_limits_hold_inside_a_wrapped_function() -> None:
    def limits_in_the_step(element: int, factor: int) -> tuple[int, RequestLimits]:
        return element * factor, request_limits()

    limited = apply_limits(LIMITS, limits_in_the_step)
    assert limited(3, 2) == (6, LIMITS)
    assert request_limits() == RequestLimits()
    # It travels to the workers, and Beam reads its types.
    assert pickler.loads(pickler.dumps(limited))(3, 2) == (6, LIMITS)
    assert inspect.signature(limited) == inspect.signature(limits_in_the_step)
