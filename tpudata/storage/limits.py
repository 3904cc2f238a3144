"""Limits of this process for object stores: concurrent requests and the duration of retries.

They belong to the process, as the connections do. A conversion sets its limits while it runs, and so does each of its steps while
it handles an element in a worker, from options that travel with the step; afterwards, the earlier limits apply again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from tpudata.errors import UsageError

MAX_READ_THREADS = 1024


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests to object stores.

    Attributes:
        read_threads: number of objects or parts of objects that a process reads at the same time.
        retry_seconds: seconds after which a failing request is not tried again.

    Raises:
        UsageError: a value is out of range.
    """

    # An object store takes tens of milliseconds for even the smallest request: at 50 ms, 64 at a time are 1,280 images a second.
    read_threads: int = 64
    retry_seconds: float = 180.0

    def __post_init__(self) -> None:
        if not 1 <= self.read_threads <= MAX_READ_THREADS:
            raise UsageError(
                f"--read-threads: out of range (got {self.read_threads}, expected 1 to {MAX_READ_THREADS})."
                " Choose another value."
            )
        if not 0 < self.retry_seconds < float("inf"):
            raise UsageError(
                f"--retry-seconds: out of range (got {self.retry_seconds:g}, expected a finite number above 0)."
                " Choose another value."
            )


_DEFAULT = RequestLimits()
# Limits that are in force, by an object for each context; the context that began last comes last.
_limits_by_context: dict[object, RequestLimits] = {}
_lock = threading.Lock()


def request_limits() -> RequestLimits:
    """Return the limits of this process: of the context that began last and has not ended, or the defaults without contexts."""
    with _lock:
        return next(reversed(_limits_by_context.values()), _DEFAULT)


@contextlib.contextmanager
def held_request_limits(limits: RequestLimits) -> Iterator[None]:
    """Apply limits to this process while the context lasts; contexts may end in any order."""
    key = object()
    with _lock:
        _limits_by_context[key] = limits
    try:
        yield
    finally:
        with _lock:
            del _limits_by_context[key]
