"""Hooks that feed placeholders of model_fn, and hooks that keep its tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, FeedFnHook, FinalOpsHook, TPUEstimatorSpec


def build(folder: Path, see: Callable[[Any], None] | None = None, replicas: int = 1) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        rate = v1.placeholder_with_default(0.1, [], name="rate")
        offsets = v1.placeholder_with_default(tf.zeros([3]), [3], name="offsets")
        loss = tf.reduce_mean((programs.linear(features["x"] + offsets) - labels) ** 2, name="the_loss")
        if see is not None:
            see(loss)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(rate))
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    return make_estimator(folder, model_fn, save_summary_steps=1, tpu_config={"num_replicas": replicas})


def by_session(feeds: list[dict[str, Any]]) -> list[float]:
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.placeholder(tf.float32, [8, 3]), v1.placeholder(tf.float32, [8])
        rate = v1.placeholder_with_default(0.1, [], name="rate")
        offsets = v1.placeholder_with_default(tf.zeros([3]), [3], name="offsets")
        loss = tf.reduce_mean((programs.linear(x + offsets) - y) ** 2)
        train_op = v1.train.GradientDescentOptimizer(rate).minimize(loss)
        session.run(v1.global_variables_initializer())
        losses = []
        for number, fed in enumerate(feeds):
            rows = np.arange(number * 8, number * 8 + 8) % len(X)
            losses.append(session.run([loss, train_op], {x: X[rows], y: Y[rows], **fed})[0])
        return losses


@pytest.mark.parametrize("replicas", [1, 2])
def test_feeds_placeholders_with_a_default(replicas: int, tmp_path: Path) -> None:
    feeds: list[dict[str, Any]] = [
        {"rate:0": 0.02},
        {"rate:0": 0.03, "offsets:0": np.ones(3)},
        {},
        {"offsets:0": [1, 0, -1]},
        {"rate:0": 0.0},
        {"rate:0": 0.05},
    ]
    steps = iter(feeds)
    estimator = build(tmp_path, replicas=replicas)
    estimator.train(train_input_fn, hooks=[FeedFnHook(lambda: next(steps))], steps=len(feeds))
    np.testing.assert_allclose(programs.losses(tmp_path), by_session(feeds), rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_fetches_are_computed_from_fed_values(replicas: int, tmp_path: Path) -> None:
    seen = []

    class Twice(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.doubled = 2 * v1.get_default_graph().get_tensor_by_name("rate:0")

        def before_run(self, run_context: Any) -> Any:
            del run_context
            return v1.train.SessionRunArgs([self.doubled, "rate:0"], {"rate:0": 0.25})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context
            seen.append(run_values.results)

    build(tmp_path, replicas=replicas).train(train_input_fn, hooks=[Twice()], steps=2)
    assert seen == [[0.5, 0.25]] * 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fed_tensor_of_a_hook_is_fetched_as_it_was_fed(replicas: int, tmp_path: Path) -> None:
    seen = []

    class Replacing(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            loss = v1.get_default_graph().get_tensor_by_name("the_loss:0")
            self.replaced = v1.placeholder_with_default(loss, [])
            self.doubled = 2 * self.replaced

        def before_run(self, run_context: Any) -> Any:
            del run_context
            return v1.train.SessionRunArgs([self.replaced, self.doubled], {self.replaced: 5.0})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context
            seen.append(run_values.results)

    estimator = build(tmp_path, replicas=replicas).train(train_input_fn, hooks=[Replacing()], steps=2)
    assert seen == [[5.0, 10.0]] * 2
    estimator.evaluate(train_input_fn, hooks=[Replacing()], steps=2)
    assert seen == [[5.0, 10.0]] * 4


@pytest.mark.parametrize(
    ("name", "value", "replicas", "message"),
    [
        ("the_loss:0", 1.0, 1, r"FeedFnHook feeds 'the_loss:0' of model_fn.*expected a tf\.placeholder_with_default"),
        ("the_loss:0", 1.0, 2, r"FeedFnHook feeds 'the_loss:0' of model_fn.*expected a tf\.placeholder_with_default"),
        ("offsets:0", [1.0], 1, r"'offsets:0' has the shape \(3,\)"),
        ("rate:0", "x", 1, "cannot be fed"),
    ],
)
def test_rejects_feeds_that_a_compiled_step_cannot_take(
    name: str, value: Any, replicas: int, message: str, tmp_path: Path
) -> None:
    hook = FeedFnHook(lambda: {name: value})
    with pytest.raises(ValueError, match=message):
        build(tmp_path, replicas=replicas).train(train_input_fn, hooks=[hook], steps=1)


def test_a_hook_can_fetch_a_loss_kept_by_model_fn(tmp_path: Path) -> None:
    """Some programs' hook is a global, or an attribute of the object whose method is model_fn."""

    class Keeper(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self) -> None:
            self.loss: Any = None
            self.seen: list[float] = []

        def before_run(self, run_context: Any) -> Any:
            del run_context
            return v1.train.SessionRunArgs(self.loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context
            self.seen.append(float(run_values.results))

    keeper = Keeper()
    estimator = build(tmp_path, lambda loss: setattr(keeper, "loss", loss))
    for _ in range(2):
        estimator.train(train_input_fn, hooks=[keeper], steps=3)
    np.testing.assert_allclose(keeper.seen, programs.losses(tmp_path), rtol=1e-6)
    del keeper.seen[:]
    result = estimator.evaluate(finite_input_fn(16), hooks=[keeper])
    assert np.mean(keeper.seen) == pytest.approx(result["loss"])


def test_final_ops_read_variables_but_not_the_batch(tmp_path: Path) -> None:
    final = FinalOpsHook({"w": "linear/w:0", "rate": "rate:0"})
    estimator = build(tmp_path).train(train_input_fn, hooks=[final], steps=3)
    np.testing.assert_array_equal(final.final_ops_values["w"], estimator.get_variable_value("linear/w"))
    assert final.final_ops_values["rate"] == np.float32(0.1)
    with pytest.raises(ValueError, match=r"depends on the batch, which does not exist between two steps"):
        estimator.train(train_input_fn, hooks=[FinalOpsHook("the_loss:0")], steps=1)
