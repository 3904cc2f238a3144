"""What of a model_fn's graph runs in a step: the numbers are those of the original on TensorFlow 2.15 (scripts/oracle_tf215)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import make_estimator, v1
from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec
from tpudata.estimator._errors import ModelFnError

# A weight of which a step takes a fifth, with a loss of its square.
STEPS = 5


def input_fn(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensors({"x": np.ones([params["batch_size"], 1], np.float32)}).repeat()


def spec_of(mode: str, w: Any, train: Any = (), loss_waits_for: Any = (), **more: Any) -> TPUEstimatorSpec:
    with tf.control_dependencies(list(loss_waits_for)):
        loss = tf.identity(tf.reduce_sum(w**2))
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(mode, loss=loss)
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = tf.group(optimizer.minimize(loss, v1.train.get_global_step()), *train)
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **more)


def trained(folder: Path, model_fn: Any, **options: Any) -> Any:
    return make_estimator(folder, model_fn, iterations=2, **options).train(input_fn, steps=STEPS)


def counter(name: str = "counter", **options: Any) -> Any:
    return v1.get_variable(name, [], initializer=v1.zeros_initializer(), trainable=False, **options)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with w = 10 and old/w = 20."""
    with tf.Graph().as_default(), v1.Session() as session:
        saved = [v1.get_variable(name, initializer=[value]) for name, value in (("w", 10.0), ("old/w", 20.0))]
        session.run(v1.global_variables_initializer())
        return str(v1.train.Saver(saved).save(session, str(tmp_path_factory.mktemp("given") / "given")))


def plain() -> Any:
    return v1.get_variable("w", [1], initializer=v1.zeros_initializer())


def scoped() -> Any:
    with v1.variable_scope("new"):
        return plain()


def partitioned() -> Any:
    with v1.variable_scope("new", partitioner=v1.fixed_size_partitioner(1)):
        return plain()


MAPS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], float]] = {
    "names": (plain, lambda _: {"w": "w"}, 10),
    "prefixes": (scoped, lambda _: {"old/": "new/"}, 20),
    "a variable": (scoped, lambda w: {"w": w}, 10),
    "a list": (partitioned, lambda w: {"old/w": list(w)}, 20),
    "partitioned": (partitioned, lambda _: {"w": "new/w"}, 10),
}


def restoring(given: str, name: str, *, in_scaffold: bool) -> Any:
    make, mapping, _ = MAPS[name]

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = make()

        def scaffold_fn() -> Any:
            tf.compat.v1.train.init_from_checkpoint(given, mapping(w))
            return v1.train.Scaffold()

        if in_scaffold:
            return spec_of(mode, tf.convert_to_tensor(w), scaffold_fn=scaffold_fn)
        tf.compat.v1.train.init_from_checkpoint(given, mapping(w))
        return spec_of(mode, tf.convert_to_tensor(w))

    return model_fn


@pytest.mark.parametrize("place", ["model_fn", "scaffold_fn"])
@pytest.mark.parametrize("name", MAPS)
def test_values_of_a_checkpoint_are_taken_once(name: str, place: str, given: str, tmp_path: Path) -> None:
    model_fn, first = restoring(given, name, in_scaffold=place == "scaffold_fn"), MAPS[name][2]
    estimator = trained(tmp_path, model_fn)
    variable = {"names": "w", "a list": "new/w/part_0", "partitioned": "new/w/part_0"}.get(name, "new/w")
    start = tf.train.load_variable(str(tmp_path / "model.ckpt-0"), variable)
    assert start == [np.float32(first)]
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8**STEPS], rtol=1e-6)
    trained(tmp_path, model_fn)  # taken up again
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8 ** (2 * STEPS)], rtol=1e-6)


def test_values_of_a_checkpoint_on_several_replicas(given: str, tmp_path: Path) -> None:
    two = {"tpu_config": {"num_shards": 2}}
    estimator = trained(tmp_path / "scaffold", restoring(given, "names", in_scaffold=True), **two)
    np.testing.assert_allclose(estimator.get_variable_value("w"), [10 * 0.8**STEPS], rtol=1e-6)
    with pytest.raises(ModelFnError, match="scaffold_fn"):
        trained(tmp_path / "model", restoring(given, "names", in_scaffold=False), **two)


def test_a_first_value_that_depends_on_another(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", initializer=[3.0])
        doubled = v1.get_variable("doubled", initializer=2 * w.initial_value, trainable=False)
        return spec_of(mode, w + 0 * doubled)

    assert trained(tmp_path, model_fn).get_variable_value("doubled") == [6]


CALLS: list[int] = []


def _call() -> int:
    CALLS.append(1)
    return 0


def _normalized(w: Any, *, run: bool) -> dict[str, Any]:
    layers = pytest.importorskip("tf_keras").layers
    normalization = layers.BatchNormalization(momentum=0.5)
    net = normalization(w[None] + 1, training=True)
    return {"train": normalization.updates if run else [], "loss_waits_for": [net]}


def _local(w: Any) -> dict[str, Any]:
    seen = counter("seen", collections=[v1.GraphKeys.LOCAL_VARIABLES])
    return {"train": [counter().assign(seen.assign_add(1.0))]}


def _table(w: Any) -> dict[str, Any]:
    filler = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0])
    found = tf.lookup.StaticHashTable(filler, -1.0).lookup(tf.constant(["a", "b", "c"]))
    return {"train": [counter().assign_add(tf.reduce_sum(found))]}


def _left(effect: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def leave(w: Any) -> dict[str, Any]:
        effect(w)
        return {}

    return leave


def _average(w: Any) -> None:
    v1.train.ExponentialMovingAverage(0.5).apply([w])


# What is left in the graph beside the step; a variable, and its value after five steps.
EFFECTS: dict[str, tuple[Callable[[Any], dict[str, Any]], str, float]] = {
    "a counter": (_left(lambda _: counter().assign_add(1.0)), "counter", 0),
    "a counter in train_op": (lambda _: {"train": [counter().assign_add(1.0)]}, "counter", 5),
    "a counter that the loss waits for": (lambda _: {"loss_waits_for": [counter().assign_add(1.0)]}, "counter", 5),
    "an assignment": (_left(lambda w: w.assign([7.0])), "w", 0.8**5),
    "the initializer": (_left(lambda w: tf.group(w.initializer)), "w", 0.8**5),
    "updates": (lambda w: _normalized(w, run=False), "batch_normalization/moving_variance", 1),
    "updates in train_op": (lambda w: _normalized(w, run=True), "batch_normalization/moving_variance", 0.5**5),
    "an average": (_left(_average), "w/ExponentialMovingAverage", 1),
    "an assertion": (_left(lambda _: v1.Assert(v1.placeholder_with_default(False, []), ["left"])), "w", 0.8**5),
    "a local variable": (_local, "counter", 5),
    "a table": (_table, "counter", 10),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_only_what_the_step_needs_runs(name: str, tmp_path: Path) -> None:
    leave, variable, value = EFFECTS[name]

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", initializer=[1.0])
        return spec_of(mode, w, **leave(w))

    estimator = trained(tmp_path, model_fn)
    np.testing.assert_allclose(estimator.get_variable_value(variable), value, rtol=1e-6)
    before = {item: estimator.get_variable_value(item) for item in estimator.get_variable_names()}
    loss = estimator.evaluate(lambda params: input_fn(params).take(2))["loss"]
    assert loss == pytest.approx(0.64**5, rel=1e-5)
    assert all((estimator.get_variable_value(item) == old).all() for item, old in before.items())


@pytest.mark.parametrize("runs", [False, True])
def test_functions_of_python(runs: bool, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w, called = v1.get_variable("w", initializer=[1.0]), tf.py_function(_call, [], tf.int32)
        return spec_of(mode, w, loss_waits_for=[called] if runs else [])

    CALLS.clear()
    trained(tmp_path, model_fn)
    assert len(CALLS) == (STEPS if runs else 0)


def test_several_replicas_refuse_a_change_that_one_would_not_make(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        counter().assign_add(1.0)
        return spec_of(mode, v1.get_variable("w", initializer=[1.0]))

    with pytest.raises(ModelFnError, match=r"'AssignAddVariableOp'.*control_dependencies"):
        trained(tmp_path, model_fn, tpu_config={"num_shards": 2})


class Asking(v1.train.SessionRunHook):  # type: ignore[misc]
    """Asks for an operation of model_fn with every second step."""

    def __init__(self) -> None:
        self._steps = 0

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        self._steps += 1
        return v1.train.SessionRunArgs("count") if self._steps % 2 else None


def test_an_operation_runs_in_the_steps_that_a_hook_asks_for_it(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        tf.group(counter().assign_add(1.0 + 0 * features["x"][0, 0]), name="count")
        return spec_of(mode, v1.get_variable("w", initializer=[1.0]))

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(input_fn, steps=STEPS, hooks=[Asking()])
    assert estimator.get_variable_value("counter") == 3
    estimator.train(input_fn, steps=STEPS)
    assert estimator.get_variable_value("counter") == 3
