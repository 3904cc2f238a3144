"""Params of models from config files, and the errors of wrong ones.

Tests make the dataclasses that all bundled models share, with any values.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from tpudata.errors import UsageError
from tpudata.models.training.params import ModelParams
from tpudata.models.training.train_op import TrainingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Params(ModelParams):
    model: ClassVar[str] = "a_model"
    needed: int
    rate: float = 0.5
    name: str = "x"
    flag: bool = False
    limit: float | None = None
    sizes: tuple[int, ...] = ()
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.require("needed", self.needed > 0, "positive")
        self.require_one_of("name", ("x", "y"))


def test_converts_values_from_config_files() -> None:
    given = {"needed": np.int64(3), "rate": 1, "limit": None, "sizes": [1, 2], "shape": [4, 5], "flag": True}
    found = Params.from_params({**given, "batch_size": 8, "use_tpu": True, "context": object()})
    assert found == Params(needed=3, rate=1.0, sizes=(1, 2), shape=(4, 5), flag=True)
    assert type(found.rate) is float
    assert type(found.needed) is int
    assert Params.from_params({"needed": 1, "limit": 2}).limit == 2.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "a_model needs the parameter 'needed', which has no default"),
        ({"needed": 1, "raet": 1}, "a_model has no parameter 'raet' (expected one of seed, needed, rate"),
        ({"needed": 1, "raet": 1}, "Did you mean 'rate'?"),
        ({"needed": "3"}, "a_model: needed must be a whole number, got '3'."),
        ({"needed": 3.0}, "needed must be a whole number, got 3.0."),
        ({"needed": True}, "needed must be a whole number, got True."),
        ({"needed": 0}, "a_model: needed must be positive, got 0."),
        ({"needed": 1, "rate": "1e-3"}, "rate must be a number, got '1e-3'."),
        ({"needed": 1, "rate": float("nan")}, "rate must be a number, got nan."),
        ({"needed": 1, "rate": 10**400}, "rate must be a number, got 1000"),
        ({"needed": 1, "flag": 1}, "flag must be true or false, got 1."),
        ({"needed": 1, "name": None}, "name must be a text, got None."),
        ({"needed": 1, "name": "z"}, "name must be one of x, y, got 'z'."),
        ({"needed": 1, "limit": "no"}, "limit must be a number or None, got 'no'."),
        ({"needed": 1, "sizes": 3}, "sizes must be a list of int, got 3."),
        ({"needed": 1, "sizes": [3, "4"]}, "sizes must be a list of int"),
        ({"needed": 1, "shape": [1, 2, 3]}, "shape must be a list of 2 int or None"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Params.from_params(params)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of adam, momentum, sgd, lars"),
        ({"schedule": "line"}, "schedule must be one of constant, cosine, step"),
        ({"learning_rate": 0}, "learning_rate must be positive, got 0.0"),
        ({"momentum": 1}, "momentum must be in [0, 1)"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more"),
        ({"gradient_clip": 0}, "gradient_clip must be None or positive"),
        ({"schedule": "cosine"}, "decay_steps must be the step at which cosine ends, after warm-up, got None"),
        ({"schedule": "cosine", "decay_steps": 5, "warmup_steps": 5}, "decay_steps must be"),
        ({"schedule": "step"}, "decay_boundaries must be given with the schedule step"),
        ({"schedule": "step", "decay_boundaries": [5, 3]}, "decay_boundaries must be ascending steps"),
    ],
)
def test_rejects_wrong_training_params(params: dict[str, Any], message: str) -> None:
    class Trained(TrainingParams):
        model: ClassVar[str] = "a_model"

    with pytest.raises(UsageError) as error:
        Trained.from_params(params)
    assert message in str(error.value)
