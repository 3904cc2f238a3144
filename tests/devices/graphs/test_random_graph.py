"""Random operations whose draws depend on the step equal those of a session that runs all steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops  # private: all random operations of TensorFlow call these functions

from tests.estimator import programs
from tests.estimator.programs import Program, make_estimator, own_variables, side_by_side, train_input_fn, v1
from tpudata.devices.graphs.random_graph import rewrite_random_operations
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec

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


def drawn_at(steps: list[int]) -> list[dict[str, Any]]:
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(3)
        step = v1.placeholder(tf.int64, [], name="step")
        names = {name: draw().name for name, draw in DRAWS.items()}
    graph_def = rewrite_random_operations(graph.as_graph_def(), step.op.name)
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return [session.run(names, {step.name: number}) for number in steps]


def test_draws_equal_those_of_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        v1.placeholder(tf.int64, [])  # An operation's seed depends on the number of operations before it.
        drawn = {name: draw() for name, draw in DRAWS.items()}
        expected = [session.run(drawn) for _ in range(4)]
    found = drawn_at([0, 1, 2, 3])
    (again,) = drawn_at([1])
    for name in DRAWS:
        for number in range(4):
            np.testing.assert_array_equal(found[number][name], expected[number][name], err_msg=name)
        if name != "shuffled":
            np.testing.assert_array_equal(again[name], expected[1][name], err_msg=name)
    assert not np.array_equal(expected[0]["uniform"], expected[1]["uniform"])


def test_does_not_replace_unseeded_draws_or_draws_in_loops() -> None:
    with tf.Graph().as_default() as graph:
        step = v1.placeholder(tf.int64, [], name="step")
        v1.random_uniform([2])  # without a seed, every run draws anew
        tf.while_loop(lambda i: i < 3, lambda i: i + v1.random_uniform([], 0, 2, tf.int32, seed=1), [0])
    graph_def = rewrite_random_operations(graph.as_graph_def(), step.op.name)
    assert sum(node.op == "RandomUniform" for node in graph_def.node) == 1
    assert graph_def == graph.as_graph_def()


@pytest.mark.parametrize("replicas", [1, 2])
def test_tracing_changes_no_tensorflow_module(replicas: int, tmp_path: Path) -> None:
    """Other threads of a program draw at the same time."""
    before = dict(vars(gen_random_ops))
    changed: list[str] = []

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        changed.extend(name for name, item in vars(gen_random_ops).items() if item is not before[name])
        return side_by_side({"v1": noisy(LAYERS["v1"])})(features, labels, mode)

    make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": replicas}).train(train_input_fn, steps=1)
    assert not changed


@pytest.mark.parametrize("replicas", [1, 2])
def test_hooks_and_host_call_get_what_the_step_drew(replicas: int, tmp_path: Path) -> None:
    found: list[float] = []

    class Fetch(v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is untyped
        def __init__(self, tensors: list[Any]) -> None:
            self.tensors = tensors

        def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
            return v1.train.SessionRunArgs(self.tensors)

        def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
            drawn, total = run_values.results
            found.append(float(total) - float(drawn.sum()))

    def host_fn(drawn: Any, sums: Any) -> Any:
        return v1.assert_near(tf.reduce_sum(drawn), tf.reduce_sum(sums), atol=1e-5)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        noise = v1.random_uniform([3], seed=7)
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        loss = tf.reduce_sum(0.0 * w) + tf.reduce_sum(noise)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        host_call = (host_fn, [noise, tf.reshape(tf.reduce_sum(noise), [1])])
        hooks = [Fetch([noise, loss])]
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call, training_hooks=hooks)

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": replicas}, iterations=1)
    estimator.train(train_input_fn, steps=3)
    np.testing.assert_allclose(found, [0.0] * 3, atol=1e-5)


def noisy(draw: Callable[[Any], Any]) -> Program:
    """A program whose loss shows its draws."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        loss = tf.reduce_mean((draw(features["x"]) @ w - labels[:, None]) ** 2)
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.01))
        return loss, optimizer.minimize(loss, global_step=steps, var_list=own_variables())

    return program


LAYERS = {
    "v1": lambda x: v1.nn.dropout(x, rate=0.5),
    "v1 with a seed": lambda x: v1.nn.dropout(x + v1.random_normal(tf.shape(x), seed=4), rate=0.5, seed=3),
    "tf_keras": lambda x: pytest.importorskip("tf_keras").layers.Dropout(0.5)(x, training=True),
    "keras": lambda x: pytest.importorskip("keras").layers.Dropout(0.5)(x, training=True),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("replicas", "kinds"),
    [(1, list(LAYERS)), (2, ["v1 with a seed", "keras"]), pytest.param(2, list(LAYERS), marks=pytest.mark.matrix)],
)
def test_resumed_training_continues_the_sequence_of_draws(replicas: int, kinds: list[str], tmp_path: Path) -> None:
    model_fn = side_by_side({kind: noisy(LAYERS[kind]) for kind in kinds})

    def input_fn(params: dict[str, Any], start_step: int) -> Any:
        return train_input_fn(params).skip(start_step)

    def losses(folder: str, *ends: int) -> list[float]:
        for end in ends:  # each time with a new estimator, and thus new kernels
            settings: dict[str, Any] = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1}
            estimator = make_estimator(tmp_path / folder, model_fn, iterations=2, **settings)
            estimator.train(input_fn, max_steps=end)
        return programs.losses(tmp_path / folder)

    assert losses("parts", 2, 6) == losses("whole", 6)
