"""Limits of requests in the steps that ask object stores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import apache_beam as beam

from tpudata.storage import RequestLimits, held_request_limits

Generator = TypeVar("Generator", bound=Callable[..., Iterator[Any]])
Function = TypeVar("Function", bound=Callable[..., Any])


class LimitedStep(beam.DoFn):  # type: ignore[misc]
    """DoFn whose methods that `holds_limits` decorates run under limits of requests.

    Args:
        limits: limits of the requests.
    """

    def __init__(self, limits: RequestLimits) -> None:
        super().__init__()
        self._limits = limits


def holds_limits(method: Generator) -> Generator:
    """Decorate a generator method of a LimitedStep, such as `process`, so that its limits are held in the worker while it runs.

    The limits are not held from setup to teardown: an engine whose worker runs in the program's own process may never tear a step
    down.
    """

    @functools.wraps(method)
    def run_limited(self: LimitedStep, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with held_request_limits(self._limits):
            yield from method(self, *args, **kwargs)

    return run_limited  # type: ignore[return-value]


def apply_limits(limits: RequestLimits, function: Function) -> Function:
    """Return a function of one element for `beam.Map`, so that limits are held in the worker while it handles the element.

    Args:
        limits: limits of the requests.
        function: returns a value; an iterator would be read after the limits have ended.
    """

    @functools.wraps(function)
    def run_limited(*args: Any, **kwargs: Any) -> Any:
        with held_request_limits(limits):
            return function(*args, **kwargs)

    return run_limited  # type: ignore[return-value]
