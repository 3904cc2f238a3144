"""Limits of this process for object stores: concurrent requests and the duration of retries.

They belong to the process, as the connections do. A conversion holds its own while it runs, and so does each of its steps in the
process of a worker, from options that travel with it; then those before it hold again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

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


class HeldLimits:
    """Limits that hold from now on until they are released; of several, the last ones do.

    Args:
        limits: limits of the process.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        with _lock:
            _held.append(self)

    def release(self) -> None:
        """Let the limits before hold again; nothing if that was done."""
        with _lock, contextlib.suppress(ValueError):
            _held.remove(self)


_set = RequestLimits()
_held: list[HeldLimits] = []
_lock = threading.Lock()


def request_limits() -> RequestLimits:
    """Return the limits of this process."""
    with _lock:
        return _held[-1].limits if _held else _set


def set_request_limits(limits: RequestLimits) -> None:
    """Set the limits of this process, for requests that begin from now on and while no others are held."""
    global _set
    _set = limits


@contextlib.contextmanager
def held_request_limits(limits: RequestLimits) -> Iterator[None]:
    """Hold limits of this process while the context lasts."""
    held = HeldLimits(limits)
    try:
        yield
    finally:
        held.release()
