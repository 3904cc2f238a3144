"""Limits of this process for object stores: concurrent requests and the duration of retries.

Every worker of a conversion sets them from options that travel with its steps. They belong to the process, as connections do.
"""

from __future__ import annotations

import dataclasses

from tpudata.errors import UsageError

MOST_READ_THREADS = 1024


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests to object stores.

    Attributes:
        read_threads: number of objects or parts of objects that a process reads at the same time.
        retry_seconds: seconds after which a failing request is not tried again.

    Raises:
        UsageError: a value is out of range.
    """

    # An object store takes tens of milliseconds for a request of any size: at 50 ms, 64 at a time are 1,280 images a second.
    read_threads: int = 64
    retry_seconds: float = 180.0

    def __post_init__(self) -> None:
        if not 1 <= self.read_threads <= MOST_READ_THREADS:
            raise UsageError(
                f"--read-threads: out of range (got {self.read_threads}, expected 1 to {MOST_READ_THREADS})."
                " Choose another value."
            )
        if not 0 < self.retry_seconds < float("inf"):
            raise UsageError(
                f"--retry-seconds: out of range (got {self.retry_seconds:g}, expected more than 0). Choose another value."
            )


_current = RequestLimits()


def request_limits() -> RequestLimits:
    """Return the limits of this process."""
    return _current


def set_request_limits(limits: RequestLimits) -> None:
    """Set the limits of this process, for requests that begin from now on."""
    global _current
    _current = limits
