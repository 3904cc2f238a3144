"""Initial values of variables, from checkpoints and other variables, in model_fn and scaffold_fn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import make_estimator, v1
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec

# A step multiplies the weight by 0.8.
FEW = 5


def input_fn(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensors({"x": np.ones([params["batch_size"], 1], np.float32)}).repeat()


def spec_of(mode: str, w: Any, **more: Any) -> TPUEstimatorSpec:
    loss = tf.reduce_sum(w**2)
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **more)


def trained(folder: Path, model_fn: Any, replicas: int) -> Any:
    config = {"num_replicas": replicas}
    return make_estimator(folder, model_fn, iterations=2, tpu_config=config).train(input_fn, steps=FEW)


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


# The cases of the original have names, variables, lists and partitions in a model_fn.
SOME = {
    ("model_fn", 1, "prefixes"),
    ("scaffold_fn", 1, "names"),
    ("model_fn", 2, "prefixes"),
    ("scaffold_fn", 2, "a list"),
}


@pytest.mark.parametrize(
    ("name", "place", "replicas"),
    [
        pytest.param(
            name,
            place,
            replicas,
            marks=[] if (place, replicas, name) in SOME else pytest.mark.matrix,
        )
        for replicas in (1, 2)
        for place in ("model_fn", "scaffold_fn")
        for name in MAPS
    ],
)
def test_init_from_checkpoint_loads_values_once(
    name: str, place: str, replicas: int, given: str, tmp_path: Path
) -> None:
    model_fn, first = restoring(given, name, in_scaffold=place == "scaffold_fn"), MAPS[name][2]
    estimator = trained(tmp_path, model_fn, replicas)
    variable = {"names": "w", "a list": "new/w/part_0", "partitioned": "new/w/part_0"}.get(name, "new/w")
    start = tf.train.load_variable(str(tmp_path / "model.ckpt-0"), variable)
    assert start == [np.float32(first)]
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8**FEW], rtol=1e-6)
    trained(tmp_path, model_fn, replicas)  # resumed
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8 ** (2 * FEW)], rtol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_initial_value_can_depend_on_another(replicas: int, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", initializer=[3.0])
        doubled = v1.get_variable("doubled", initializer=2 * w.initial_value, trainable=False)
        return spec_of(mode, w + 0 * doubled)

    assert trained(tmp_path, model_fn, replicas).get_variable_value("doubled") == [6]
