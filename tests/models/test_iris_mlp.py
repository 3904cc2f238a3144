from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.programs import estimator, first_values, random_like, rehearsed, rows, run_graph
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.iris_mlp import IrisMlpParams, iris_mlp, model_fn

RNG = np.random.default_rng(8)


@pytest.fixture(scope="module")
def irises() -> tuple[Any, Any]:
    """The 150 irises in a fixed random order: float32 [150, 4] and int32 [150]."""
    from sklearn.datasets import load_iris

    data = load_iris()
    order = np.random.default_rng(0).permutation(150)
    return data.data.astype(np.float32)[order], data.target.astype(np.int32)[order]


def test_learns_irises(irises: tuple[Any, Any], tmp_path: Path) -> None:
    measured, species = irises
    trained = estimator(model_fn, tmp_path, 20)
    training = rows({"measured": measured[:100]}, species[:100], forever=True)
    held_out = rows({"measured": measured[100:]}, species[100:], padded=True)
    before = trained.evaluate(held_out)["cross_entropy"]
    trained.train(training, max_steps=150)
    found = trained.evaluate(held_out)
    assert found["accuracy"] >= 0.94
    assert found["cross_entropy"] < 0.3 * before
    classes = [row["classes"] for row in trained.predict(held_out)]
    assert np.mean(classes == species[100:]) == pytest.approx(found["accuracy"])


def test_initial_values_and_logits_are_as_computed_by_hand() -> None:
    inputs = RNG.normal(size=(5, 4)).astype(np.float32)

    def build() -> Any:
        return iris_mlp(tf.constant(inputs), IrisMlpParams(hidden_units=(64, 32), activation="tanh"), training=False)

    values = first_values(build)
    assert {name: value.shape for name, value in values.items()} == {
        "hidden_0/kernel": (4, 64),
        "hidden_0/bias": (64,),
        "hidden_1/kernel": (64, 32),
        "hidden_1/bias": (32,),
        "logits/kernel": (32, 3),
        "logits/bias": (3,),
    }
    assert values["hidden_1/kernel"].std() == pytest.approx(0.1, rel=0.05)
    assert not values["hidden_1/bias"].any()
    values = random_like(values)
    net: Any = inputs.astype(np.float64)
    for name in ("hidden_0", "hidden_1"):
        net = np.tanh(net @ values[f"{name}/kernel"] + values[f"{name}/bias"])
    expected = net @ values["logits/kernel"] + values["logits/bias"]
    np.testing.assert_allclose(run_graph(build, values)[0], expected, rtol=1e-4, atol=1e-5)


def test_joins_columns_in_the_order_of_their_names_or_the_given_one(tmp_path: Path) -> None:
    """A table of numbers is fed as one feature per column."""
    values = RNG.normal(size=(6, 3)).astype(np.float32)
    columns = {"b": values[:, 1], "a": values[:, 0], "c": values[:, 2], "id": np.arange(6, dtype=np.int32)}
    labels = np.zeros(6, np.int32)

    def probabilities(features: dict[str, Any], **params: Any) -> Any:
        trained = estimator(model_fn, tmp_path / str(len(params)), 6, **params)
        return [row["probabilities"] for row in trained.predict(rows(features, labels))]

    expected = probabilities({"x": values})
    np.testing.assert_allclose(probabilities(columns), expected, rtol=1e-6)
    reordered = {"a": values[:, 2], "b": values[:, 1], "c": values[:, 0]}
    named = probabilities(reordered, feature_names=["c", "b", "a"])
    np.testing.assert_allclose(named, expected, rtol=1e-6)


def test_rehearsal_finds_nothing_a_tpu_rejects(irises: tuple[Any, Any], tmp_path: Path) -> None:
    findings = rehearsed(model_fn, tmp_path, {"x": irises[0][:16]}, irises[1][:16], dropout=0.2, hidden_units=[8])
    assert [str(finding) for finding in findings] == []


@pytest.mark.parametrize(
    ("features", "params", "message"),
    [
        ({"id": np.zeros(3, np.int32)}, {}, "features must contain floats, got id"),
        ({"a": np.zeros(3, np.float32)}, {"feature_names": ["a", "b"]}, "features must contain b, got a"),
        ({"a": np.zeros((3, 2, 2), np.float32)}, {}, r"a must be \[batch\] or \[batch, numbers\], got \(3, 2, 2\)"),
        ({"a": np.zeros(3, np.float32)}, {"activation": "gelu"}, "one of sigmoid, relu, tanh"),
        ({"a": np.zeros(3, np.float32)}, {"hidden_units": [4, 0]}, "hidden_units must be 1 or more"),
        ({"a": np.zeros(3, np.float32)}, {"num_classes": 1}, "num_classes must be 2 or more"),
    ],
)
def test_rejects_wrong_features_and_params(features: dict[str, Any], params: dict[str, Any], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
        model_fn({name: tf.constant(x) for name, x in features.items()}, None, ModeKeys.PREDICT, params)
