"""Random operations whose draws depend on the step: they draw what a session draws that runs all steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec
from tpudata.estimator._random_draws import drawn_by_step

DRAWS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: v1.random_uniform([7, 3], seed=5),
    "float16": lambda: v1.random_uniform([1001], -2, 3, dtype=tf.float16),
    "bfloat16": lambda: v1.random_uniform([500], dtype=tf.bfloat16),
    "float64": lambda: v1.random_normal([33], dtype=tf.float64),
    "normal": lambda: v1.random_normal([2, 0, 4]),
    "truncated": lambda: v1.truncated_normal([50, 5]),
    "int32": lambda: v1.random_uniform([9], 0, 10, tf.int32),
    "int64": lambda: v1.random_uniform([9], -5, 10**12, tf.int64),
    "dropout": lambda: v1.nn.dropout(tf.ones([100, 20]), rate=0.5),
    "size of the batch": lambda: tf.nn.dropout(tf.ones(tf.stack([4, tf.shape(tf.ones([9]))[0]])), rate=0.3, seed=2),
    "shuffled": lambda: tf.random.shuffle(tf.range(20)),  # not replaced
}


def test_they_are_those_of_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        drawn = {name: draw() for name, draw in DRAWS.items()}
        expected = [session.run(drawn) for _ in range(4)]
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        step = v1.placeholder(tf.int64, [])
        with drawn_by_step(lambda: step):
            drawn = {name: draw() for name, draw in DRAWS.items()}
        found = [session.run(drawn, {step: number}) for number in range(4)]
        again = session.run(drawn, {step: 1})
    for name in DRAWS:
        for number in range(4):
            np.testing.assert_array_equal(found[number][name], expected[number][name], err_msg=name)
        if name != "shuffled":
            np.testing.assert_array_equal(again[name], expected[1][name], err_msg=name)
    assert not np.array_equal(expected[0]["uniform"], expected[1]["uniform"])


def test_what_is_not_replaced() -> None:
    with tf.Graph().as_default() as graph:
        with drawn_by_step(lambda: tf.constant(0)):
            v1.random_uniform([2])  # without a seed, every run draws anew
            tf.while_loop(lambda i: i < 3, lambda i: i + v1.random_uniform([], 0, 2, tf.int32, seed=1), [0])
        v1.random_uniform([2], seed=1)
    assert [item.type for item in graph.get_operations() if "Random" in item.type] == ["RandomUniform"] * 2


def noisy_model_fn(draw: Callable[[Any], Any]) -> Callable[..., TPUEstimatorSpec]:
    """Its loss tells what was drawn."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        loss = tf.reduce_mean((draw(features["x"]) @ w - labels[:, None]) ** 2)
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


LAYERS = {
    "v1": lambda x: v1.nn.dropout(x, rate=0.5),
    "v1 with a seed": lambda x: v1.nn.dropout(x + v1.random_normal(tf.shape(x), seed=4), rate=0.5, seed=3),
    "tf_keras": lambda x: pytest.importorskip("tf_keras").layers.Dropout(0.5)(x, training=True),
    "keras": lambda x: pytest.importorskip("keras").layers.Dropout(0.5)(x, training=True),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_training_that_goes_on_draws_what_comes_next(kind: str, replicas: int, tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any], start_step: int) -> Any:
        return train_input_fn(params).skip(start_step)

    def losses(folder: str, *ends: int) -> list[float]:
        for end in ends:  # each time with an estimator, and thus kernels, of its own
            settings: dict[str, Any] = {"tpu_config": {"num_shards": replicas}, "save_summary_steps": 1}
            estimator = make_estimator(tmp_path / folder, noisy_model_fn(LAYERS[kind]), iterations=2, **settings)
            estimator.train(input_fn, max_steps=end)
        return programs.losses(tmp_path / folder)

    assert losses("parts", 2, 6) == losses("whole", 6)
