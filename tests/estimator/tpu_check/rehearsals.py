"""Rehearsals of small estimators on a TPU that this machine does not have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.estimator.programs import make_model_fn, train_input_fn
from tpudata.estimator import Finding, ModeKeys, RunConfig, TPUConfig, TPUEstimator


def make_estimator(folder: Path, model_fn: Any = None, size: int | None = 16, **arguments: Any) -> TPUEstimator:
    """Make an estimator for a TPU that this machine does not have."""
    return TPUEstimator(
        model_fn or make_model_fn(),
        str(folder),
        train_batch_size=16 if size is None else size,
        eval_batch_size=size,
        predict_batch_size=size,
        **{"rehearse": True, "config": RunConfig(arguments.pop("tpu_config", TPUConfig())), **arguments},
    )


def model_of(body: Callable[[Any], Any], base: Any = None) -> Any:
    """The linear model, of features [rows, 3] that `body` changes."""
    base = base or make_model_fn()

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        x = features["x"] if isinstance(features, dict) else features
        return base({"x": body(x)}, labels, mode, params)

    return model_fn


def rehearse_body(folder: Path, body: Callable[[Any], Any], mode: str = ModeKeys.TRAIN) -> list[Finding]:
    return list(make_estimator(folder, model_of(body)).rehearse({mode: train_input_fn}))


def steps_input_fn(params: dict[str, Any]) -> Any:
    return train_input_fn(params).take(2)
