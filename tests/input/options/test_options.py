"""Checks of the feeding options."""

from __future__ import annotations

from typing import Any

import pytest

from tpudata import UsageError
from tpudata.input.options.images import Images
from tpudata.input.options.options import Options


def test_options_reject_wrong_values() -> None:
    good: dict[str, Any] = {
        "training": True,
        "images": Images(),
        "parse": None,
        "transform": None,
        "shuffle": None,
        "seed": 5,
        "weights": "feature",
    }
    Options(**good)
    for wrong in (
        {"weights": "x"},
        {"shuffle": -1},
        {"seed": 2**32},
        {"service": "grpc://localhost:5050"},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Options(**{**good, **wrong})
