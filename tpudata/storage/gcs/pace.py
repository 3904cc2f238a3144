"""Limit of requests in flight: the number of threads, or fewer while the store asks for less.

Additive increase, multiplicative decrease, as in TCP: an answer 429, or 503 with Retry-After, halves the number, at most once for
the requests that were in flight together; each success raises it, by one for a whole round of requests.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

_LOWEST_LIMIT = 1.0
# A longer pause that the server asks for is shortened to this number of seconds.
LONGEST_PAUSE = 60.0


class Pace:
    """Limiter of requests in flight; safe to share between threads.

    Args:
        get_highest_limit: returns the maximum number of requests at the same time, which may change.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, get_highest_limit: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._get_highest_limit = get_highest_limit
        # Infinite until the store asks for less.
        self._lowered_limit = math.inf
        self._clock = clock
        self._in_flight_count = 0
        # Time at which the limit was last lowered; before any time of the clock at first.
        self._lowered_at = -1.0
        # Time before which no request is sent.
        self._resume_at = 0.0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight now."""
        return int(min(self._get_highest_limit(), self._lowered_limit))

    @contextlib.contextmanager
    def request(self) -> Iterator[float]:
        """Wait until a request may be sent; yield the clock's time then. The request is in flight while the context lasts."""
        with self._changed:
            while True:
                pause = self._resume_at - self._clock()
                if pause <= 0 and self._in_flight_count < self.limit:
                    break
                self._changed.wait(pause if pause > 0 else None)
            self._in_flight_count += 1
            began_at = self._clock()
        try:
            yield began_at
        finally:
            with self._changed:
                self._in_flight_count -= 1
                self._changed.notify()

    def raise_limit(self) -> None:
        """Raise the limit after a success, if it was lowered."""
        with self._changed:
            if self._lowered_limit < math.inf:
                # By 1 after as many successes as the limit.
                raised_limit = self._lowered_limit + 1 / self._lowered_limit
                self._lowered_limit = raised_limit if raised_limit < self._get_highest_limit() else math.inf
                self._changed.notify()

    def lower_limit(self, began_at: float, pause: float) -> None:
        """Halve the limit and pause, since the store asks for fewer requests.

        Args:
            began_at: time at which the request was sent.
            pause: seconds that the store asks to wait before the next request.
        """
        with self._changed:
            self._resume_at = max(self._resume_at, self._clock() + min(pause, LONGEST_PAUSE))
            # Requests that were in flight at the time count once.
            if began_at > self._lowered_at:
                self._lowered_at = self._clock()
                # Half of the requests that were really in flight, which may be fewer than the limit.
                self._lowered_limit = max(
                    _LOWEST_LIMIT, min(self._get_highest_limit(), self._lowered_limit, self._in_flight_count) / 2
                )
