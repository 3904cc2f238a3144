"""Variables to which replicas assign different values are found before a step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import v1
from tests.helpers.replicas import run_replicas
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec
from tpudata.estimator.tracing.differences import find_diverging_variables, require_cross_shard

REPLICAS = 4
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def made(name: str) -> Any:
    return v1.get_variable(name, [3], initializer=v1.ones_initializer(), trainable=False)


def replica() -> Any:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def summed(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def drawn_in_a_condition(_: Any) -> Any:
    variable = made("it")
    is_first = tf.equal(v1.train.get_global_step(), 0)
    return tf.cond(is_first, lambda: variable.assign(tf.random.normal([3])), lambda: variable.assign(tf.zeros([3])))


def through_another(x: Any) -> Any:
    first = made("first").assign(x[0])
    with tf.control_dependencies([first]):
        return made("it").assign(2.0 * first)


def in_a_condition(x: Any) -> Any:
    variable = made("it")
    return tf.cond(tf.shape(x)[0] > 1, lambda: variable.assign(x[0]), lambda: variable.assign(x[1]))


def read_by_another(x: Any) -> Any:
    """Make the other variable first; it reads the value that is assigned later."""
    other, variable = made("it"), made("first")
    return tf.group(other.assign_add(variable.read_value()), variable.assign(x[0]))


DIFFER: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: made("it").assign_add(x[0]),
    "rows of a slice": lambda x: made("it")[:1].assign(x[0, :1]),
    "rows that are scattered": lambda x: made("it").scatter_add(tf.IndexedSlices(x[0, :1], [1])),
    "number of the replica": lambda _: made("it").assign_add(tf.fill([3], replica())),
    "sums of pairs": lambda x: made("it").assign(v1.tpu.cross_replica_sum(x[0], [[0, 1], [2, 3]])),
    "condition": in_a_condition,
    "draws in a condition": drawn_in_a_condition,
    "another variable": through_another,
}
EQUAL: dict[str, Callable[[Any], Any]] = {
    "counts": lambda _: made("it").assign_add(tf.ones([3])),
    "its own value": lambda _: made("it").assign(tf.clip_by_value(made("other") * 2.0, 0.0, 3.0)),
    "an optimizer that sums": lambda x: v1.train.AdamOptimizer(0.1).apply_gradients([(x[0], made("it"))]),
    "sums": lambda x: made("it").assign(summed(x[0])),
    "long sums": lambda x: made("it").assign(tf.cast(summed(tf.cast(x[0] * 9, tf.int64)), tf.float32)),
    "gathered rows": lambda x: made("it").assign(
        tf.reduce_max(tf.distribute.get_replica_context().all_gather(x, axis=0), axis=0)
    ),
}


def model_of(change: Callable[[Any], Any]) -> Callable[[Any], TPUEstimatorSpec]:
    return lambda x: TPUEstimatorSpec("train", loss=tf.reduce_sum(x), train_op=tf.group(change(x)))


@pytest.mark.parametrize("case", DIFFER)
def test_names_variables_that_differ_between_replicas(case: str) -> None:
    run = run_replicas(model_of(DIFFER[case]), [[X]], REPLICAS)
    differ = {name for name, value in run.variables.items() if np.ptp(value, axis=0).any()}
    named = find_diverging_variables(run.blueprint, run.writes)
    assert "it" in differ
    assert named == differ


@pytest.mark.parametrize("case", EQUAL)
def test_omits_variables_that_replicas_compute_together(case: str) -> None:
    run = run_replicas(model_of(EQUAL[case]), [[X]], REPLICAS)
    assert not any(np.ptp(value, axis=0).any() for value in run.variables.values())
    assert find_diverging_variables(run.blueprint, run.writes) == set()


def test_follows_a_variable_into_one_made_earlier() -> None:
    run = run_replicas(model_of(read_by_another), [[X]], REPLICAS)
    assert find_diverging_variables(run.blueprint, run.writes) == {"it", "first"}


DRAWS: dict[str, Callable[[], Any]] = {
    "stateful": lambda: tf.random.normal([3]),
    "seeded": lambda: tf.random.uniform([3], seed=2),
    "in a condition": lambda: tf.cond(
        tf.equal(v1.train.get_global_step(), 0), lambda: tf.random.normal([3]), lambda: tf.zeros([3])
    ),
    "in a function in a function": lambda: tf.function(
        lambda: tf.cond(tf.equal(tf.size([1]), 1), lambda: tf.random.normal([3]), lambda: tf.zeros([3])),
        autograph=False,
    )(),
}


@pytest.mark.parametrize("case", DRAWS)
def test_names_variables_with_draws(case: str) -> None:
    run = run_replicas(model_of(lambda _: made("it").assign(DRAWS[case]())), [[X]], REPLICAS)
    assert find_diverging_variables(run.blueprint, run.writes) == {"it"}


def test_names_keras_seeds_and_only_variables_drawn_with_them() -> None:
    keras = pytest.importorskip("keras")

    def model(x: Any) -> TPUEstimatorSpec:
        dropped = keras.layers.Dropout(0.5)(x, training=True)
        weights = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.linalg.matvec(dropped, weights))
        train_op = CrossShardOptimizer(v1.train.AdamOptimizer(0.1)).minimize(loss)
        return TPUEstimatorSpec("train", loss=loss, train_op=tf.group(train_op, made("it").assign(dropped[0])))

    run = run_replicas(model, [[X]], REPLICAS)
    require_cross_shard(run.blueprint)
    named = find_diverging_variables(run.blueprint, run.writes)
    assert named == {"it", "seed_generator/seed_generator_state"}


def test_omits_variables_that_a_step_does_not_change() -> None:
    run = run_replicas(model_of(DIFFER["rows"]), [[X]], REPLICAS)
    assert find_diverging_variables(run.blueprint, {"global_step"}) == set()
