"""Processes that tests start."""

from __future__ import annotations

import contextlib
import os
import time

import pytest


def assert_nobody_is_left(group: int) -> None:
    """Wait, a few seconds at most, until a process group has no process any more."""
    deadline = time.monotonic() + 3
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        pytest.fail(f"process group {group} is still there")
