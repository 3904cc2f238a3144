"""Fixtures that the tests of several modules share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.digits import write_digits

# An example takes as long as the machine is busy.
settings.register_profile("tpudata", deadline=None)
settings.load_profile("tpudata")


@pytest.fixture(scope="session")
def digits_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 training and 90 validation digits, two shards each; read it, and change nothing."""
    return write_digits(tmp_path_factory.mktemp("digits"), {"train": 200, "validation": 90}, shards=2)
