"""Gradients of conditions and loops on several devices."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.programs import make_estimator, train_input_fn, v1, variables
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec

REPLICAS = 4
STEPS = 3


def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    """Learn a slope of numbers drawn inside a condition in a loop: the gradient is their sum."""
    del labels
    w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    is_true = tf.reduce_sum(features["x"]) < 1e9

    def draw() -> Any:
        return tf.reduce_sum(w * v1.random_uniform([5]))

    def body(number: Any, total: Any) -> Any:
        return number + 1, total + tf.cond(is_true, draw, lambda: 100.0 * w)

    total = tf.while_loop(lambda number, _: number < 2, body, [0, 0.0], maximum_iterations=2)[1]
    total += tf.cond(is_true, draw, lambda: 100.0 * w)
    gradient = tf.gradients(total, w)[0]
    drawn = v1.get_variable("drawn", [STEPS, REPLICAS], initializer=v1.zeros_initializer(), trainable=False)
    place = tf.one_hot(v1.train.get_global_step(), STEPS)[:, None] * tf.one_hot(replica, REPLICAS)
    groups = [list(range(REPLICAS))]
    record = drawn.assign_add(v1.tpu.cross_replica_sum(place * gradient, groups))
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.5))
    with tf.control_dependencies([record]):
        train_op = optimizer.minimize(total, global_step=v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=total, train_op=train_op)


def train(folder: Path, *ends: int) -> dict[str, Any]:
    for end in ends:
        estimator = make_estimator(folder, model_fn, iterations=2, tpu_config={"num_replicas": REPLICAS})
        estimator.train(train_input_fn, max_steps=end)
    return variables(estimator)


def test_draws_in_conditions_and_loops_differ_between_replicas_and_steps(tmp_path: Path) -> None:
    found = train(tmp_path / "whole", STEPS)
    drawn = found["drawn"]
    assert len(np.unique(drawn)) == drawn.size
    assert ((drawn > 0) & (drawn < 15)).all()
    np.testing.assert_allclose(found["w"], -0.5 * drawn.mean(1).sum(), rtol=1e-5)
    again = train(tmp_path / "parts", 1, STEPS)
    np.testing.assert_array_equal(again["drawn"], drawn)
