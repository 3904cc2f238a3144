"""Base of the steps that ask object stores."""

from __future__ import annotations

import apache_beam as beam

from tpudata.storage import HeldLimits, RequestLimits


class LimitedStep(beam.DoFn):  # type: ignore[misc]
    """DoFn that holds limits of requests in the process of its worker.

    Args:
        limits: of the requests.
    """

    def __init__(self, limits: RequestLimits) -> None:
        super().__init__()
        self._limits = limits
        self._held: HeldLimits | None = None

    def setup(self) -> None:
        """Hold the limits."""
        self._held = HeldLimits(self._limits)

    def teardown(self) -> None:
        """Release the limits."""
        if self._held is not None:
            self._held.release()
            self._held = None
