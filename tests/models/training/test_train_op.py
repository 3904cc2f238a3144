"""Optimizer steps on a small linear model, compared with numpy.

The model is small enough for numpy; bundled models are not.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from tests.models.programs import estimator, rows, variables
from tpudata.estimator import TPUEstimatorSpec
from tpudata.models.layers.linear import dense, variable
from tpudata.models.training.train_op import TrainingParams, make_train_op
from tpudata.models.training.weights import compute_weighted_mean

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = RNG.normal(size=(12, 2)).astype(np.float32)
# Rows whose weights differ between replicas.
WEIGHTS = RNG.integers(1, 5, size=12).astype(np.float32)
STEPS = 4


class Params(TrainingParams):
    model: ClassVar[str] = "linear"


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
    settings = Params.from_params(params)
    outputs = dense(features["x"], 2, "dense", tf.compat.v1.ones_initializer())
    variable("idle", [2, 2], tf.compat.v1.ones_initializer())
    losses = tf.reduce_sum((outputs - labels) ** 2, axis=1)
    loss = compute_weighted_mean(losses, features["weights"], training=True)
    return TPUEstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, settings))


def gradients(kernel: Any, bias: Any) -> tuple[Any, Any]:
    error = 2 * (X @ kernel + bias - Y) * WEIGHTS[:, None] / WEIGHTS.sum()
    return X.T @ error, error.sum(axis=0)


def followed(rule: Callable[[int, Any, Any, dict[str, Any]], Any], clip: float | None = None) -> tuple[Any, Any]:
    """Returns the kernel and the bias after the steps of a rule (step, weights, gradient, state) -> weights."""
    weights = [np.ones((3, 2)), np.zeros(2)]
    states: list[dict[str, Any]] = [{}, {}]
    for step in range(STEPS):
        found = gradients(*weights)
        norm = np.sqrt(sum((gradient**2).sum() for gradient in found))
        scale = 1.0 if clip is None else min(1.0, clip / norm)
        weights = [rule(step, w, g * scale, s) for w, g, s in zip(weights, found, states, strict=True)]
    return weights[0], weights[1]


def momentum(step: int, w: Any, g: Any, state: dict[str, Any], decay: float = 0.0) -> Any:
    g = g + (decay * w if w.ndim > 1 else 0)
    state["m"] = 0.9 * state.get("m", 0) + g
    return w - 0.05 * state["m"]


def adam(step: int, w: Any, g: Any, state: dict[str, Any], decay: float = 0.0) -> Any:
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g**2
    mean, square = state["m"] / (1 - 0.9 ** (step + 1)), state["v"] / (1 - 0.99 ** (step + 1))
    return w - 0.05 * (mean / (np.sqrt(square) + 1e-8) + (decay * w if w.ndim > 1 else 0))


def lars(step: int, w: Any, g: Any, state: dict[str, Any]) -> Any:
    ratio = 1.0
    if w.ndim > 1:
        norm = np.linalg.norm(w)
        ratio = float(0.02 * norm / (np.linalg.norm(g) + 0.1 * norm))
        g = g + 0.1 * w
    state["m"] = 0.9 * state.get("m", 0) + 0.05 * ratio * g
    return w - state["m"]


def sgd(step: int, w: Any, g: Any, state: dict[str, Any]) -> Any:
    return w - [0.025, 0.05, 0.05, 0.005][step] * g


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], float | None]] = {
    "momentum": (momentum, {"optimizer": "momentum"}, None),
    "momentum and decay": (
        functools.partial(momentum, decay=0.3),
        {"optimizer": "momentum", "weight_decay": 0.3},
        None,
    ),
    "adam": (adam, {"beta2": 0.99}, None),
    "adamw": (functools.partial(adam, decay=0.3), {"beta2": 0.99, "weight_decay": 0.3}, None),
    "lars": (lars, {"optimizer": "lars", "weight_decay": 0.1, "trust_coefficient": 0.02}, None),
    "clipped": (momentum, {"optimizer": "momentum", "gradient_clip": 0.7}, 0.7),
    "scheduled": (
        sgd,
        {"optimizer": "sgd", "schedule": "step", "decay_boundaries": [3], "warmup_steps": 2},
        None,
    ),
}


# Two replicas differ in what they sum: gradients before a clip, and norms.
@pytest.mark.parametrize(
    ("case", "replicas"),
    [
        *((case, None) for case in CASES),
        *(pytest.param(case, 2, marks=[] if case in ("lars", "clipped") else pytest.mark.matrix) for case in CASES),
    ],
)
def test_optimizer_steps_equal_numpy(case: str, replicas: int | None, tmp_path: Path) -> None:
    rule, params, clip = CASES[case]
    trained = estimator(model_fn, tmp_path, 12, replicas, learning_rate=0.05, **params)
    trained.train(rows({"x": X, "weights": WEIGHTS}, Y, forever=True), max_steps=STEPS)
    found = variables(trained)
    kernel, bias = followed(rule, clip)
    np.testing.assert_allclose(found["dense/kernel"], kernel, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(found["dense/bias"], bias, rtol=2e-4, atol=1e-5)
    # Variables without a gradient do not change, even with weight decay.
    np.testing.assert_array_equal(found["idle"], np.ones((2, 2)))


def test_lars_uses_the_ratio_1_for_zero_weights() -> None:
    def build() -> Any:
        weights = variable("w", [2, 2], tf.compat.v1.zeros_initializer())
        loss = tf.reduce_sum(weights * [[1.0, 2.0], [3.0, 4.0]])
        with tf.control_dependencies(
            [make_train_op(loss, Params(optimizer="lars", learning_rate=0.5, weight_decay=0.1))]
        ):
            return tf.identity(weights.read_value())

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = build()
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(weights), [[-0.5, -1.0], [-1.5, -2.0]])


def test_a_weighted_mean_without_weight_is_0() -> None:
    assert float(compute_weighted_mean(tf.ones([3]), tf.zeros([3]), training=False)) == 0
