# ruff: noqa: ARG002  (hooks and listeners are called with all arguments)
"""A model, and a hook that records its calls and fetches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, make_estimator, v1
from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec

REPLICAS = pytest.mark.parametrize("replicas", [1, 2])


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
    outputs = tf.identity(programs.linear(features["x"]), name="outputs")
    hooks = params.get("hooks", lambda **_: [])
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, {"outputs": outputs}, prediction_hooks=hooks(outputs=outputs))
    loss = tf.reduce_mean((outputs - labels) ** 2, name="the_loss")
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(mode, loss=loss, evaluation_hooks=hooks(loss=loss))
    step = v1.train.get_global_step()
    rate = v1.train.exponential_decay(0.1, step, 2, 0.5)
    train_op = CrossShardOptimizer(v1.train.GradientDescentOptimizer(rate)).minimize(loss, global_step=step)
    tf.identity(rate, name="rate")
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks(loss=loss))


def build(folder: Path, replicas: int = 1, hooks: Any = None, **config: Any) -> Any:
    def with_params(features: Any, labels: Any, mode: str) -> Any:
        return model_fn(features, labels, mode, {} if hooks is None else {"hooks": hooks})

    tpu_config = {"num_replicas": replicas}
    return make_estimator(folder, with_params, tpu_config=tpu_config, save_summary_steps=1, **config)


class Recorder(v1.train.SessionRunHook):  # type: ignore[misc]
    """Records its calls and fetched values."""

    def __init__(self, fetches: Any = None, name: str = "", calls: list[Any] | None = None) -> None:
        self.fetches = fetches
        self.calls = [] if calls is None else calls
        self.results: list[Any] = []
        self._name = name

    def _note(self, what: str) -> None:
        self.calls.append(f"{self._name}{what}")

    def begin(self) -> None:
        assert not tf.executing_eagerly()
        self._note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        assert isinstance(session, v1.Session)
        assert session.graph is v1.get_default_graph()
        assert not coord.should_stop()
        self._note("created")

    def before_run(self, run_context: Any) -> Any:
        self._note("before")
        fetches = self.fetches() if callable(self.fetches) else self.fetches
        return None if fetches is None else v1.train.SessionRunArgs(fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._note("after")
        self.results.append(run_values.results)

    def end(self, session: Any) -> None:
        self._note("end")


def trajectory(steps: int) -> tuple[list[float], list[Any]]:
    """The oracle: the losses, and the weights before each step, by plain NumPy."""
    w, b, losses, weights = programs.W0.astype(np.float64)[:, 0], 0.0, [], []
    for step in range(steps):
        rows = np.arange(step * 8, step * 8 + 8) % len(X)
        error = X[rows] @ w + b - Y[rows]
        losses.append(float((error**2).mean()))
        weights.append(w)
        rate = 0.1 * 0.5 ** (step / 2)
        w, b = w - rate * 2 * (X[rows].T @ error) / 8, b - rate * 2 * error.mean()
    return losses, weights
