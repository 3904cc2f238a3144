"""TensorFlow 1 input_fns that return the tensors of a batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.estimator import InputPipelineConfig as Mode

pytestmark = pytest.mark.filterwarnings("ignore:.*tf.data.*:DeprecationWarning")


def one_shot(params: dict[str, Any]) -> Any:
    features, labels = v1.data.make_one_shot_iterator(train_input_fn(params)).get_next()
    return {"x": features["x"] * 1.0}, labels


def initialized(params: dict[str, Any]) -> Any:
    iterator = v1.data.make_initializable_iterator(train_input_fn(params))
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def queues(params: dict[str, Any]) -> Any:
    row = v1.train.slice_input_producer([tf.constant(X), tf.constant(Y)], shuffle=False)
    x, y = v1.train.batch(row, params["batch_size"])
    return {"x": x}, y


def run(folder: Path, input_fn: Callable[..., Any], replicas: int) -> tuple[list[float], Any]:
    """Return the losses of training in two calls, and an evaluation."""
    settings: dict[str, Any] = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1}
    estimator = make_estimator(folder, iterations=2, **settings)
    estimator.train(input_fn, steps=4).train(input_fn, steps=2)  # each call begins with the first batch
    return programs.losses(folder), estimator.evaluate(input_fn, steps=3)


@pytest.fixture(scope="module")
def by_dataset(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The results of a dataset, by the number of replicas."""
    return {replicas: run(tmp_path_factory.mktemp("dataset"), train_input_fn, replicas) for replicas in (1, 2)}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("input_fn", "replicas"),
    [
        pytest.param(one_shot, 1, marks=pytest.mark.matrix),
        (initialized, 1),
        (queues, 1),
        (one_shot, 2),
        pytest.param(initialized, 2, marks=pytest.mark.matrix),
        pytest.param(queues, 2, marks=pytest.mark.matrix),
    ],
)
def test_tensors_train_and_evaluate_as_a_dataset_does(
    input_fn: Callable[..., Any], replicas: int, by_dataset: dict[int, Any], tmp_path: Path
) -> None:
    assert run(tmp_path, input_fn, replicas) == by_dataset[replicas]


# The test above has PER_HOST_V1.
@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "mode", [Mode.PER_SHARD_V1, pytest.param(Mode.PER_HOST_V1, marks=pytest.mark.matrix), Mode.BROADCAST]
)
def test_tensors_feed_several_replicas_in_every_mode(mode: Mode, tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 2, "per_host_input_for_training": mode}
    for name, input_fn in (("tensors", one_shot), ("dataset", train_input_fn)):
        make_estimator(tmp_path / name, tpu_config=tpu_config).train(input_fn, steps=3)
    values = [programs.variables(make_estimator(tmp_path / name)) for name in ("tensors", "dataset")]
    np.testing.assert_array_equal(values[0]["linear/w"], values[1]["linear/w"])


class Initializes(v1.train.SessionRunHook):  # type: ignore[misc]
    """The hook of public programs: it feeds the arrays to the iterator's initializer, which it gets from input_fn."""

    initialize: Callable[[Any], Any]

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        self.initialize(session)

    def input_fn(self, params: dict[str, Any]) -> Any:
        x, y = v1.placeholder(tf.float32, [40, 3]), v1.placeholder(tf.float32, [40])
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat().batch(params["batch_size"], True)
        iterator = v1.data.make_initializable_iterator(dataset.map(lambda *row: row))
        self.initialize = lambda session: session.run(iterator.initializer, feed_dict={x: X, y: Y})
        return iterator.get_next()


@pytest.mark.cases(1)
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_hook_can_initialize_the_iterator_after_create_session(
    replicas: int, by_dataset: dict[int, Any], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1}
    estimator = make_estimator(tmp_path, iterations=2, **settings)
    hook = Initializes()
    for steps in (4, 2):
        estimator.train(hook.input_fn, hooks=[hook], steps=steps)
    result = estimator.evaluate(hook.input_fn, steps=3, hooks=[hook])
    assert (programs.losses(tmp_path), result) == by_dataset[replicas]
    rows = estimator.predict(hook.input_fn, hooks=[hook])
    np.testing.assert_array_equal([next(rows)["inputs"] for _ in range(3)], X[:3])


def test_rejects_an_iterator_that_nothing_initializes(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Run its initializer in a hook's after_create_session"):
        make_estimator(tmp_path).train(Initializes().input_fn, steps=1)


def test_the_end_of_an_iterator_ends_the_data(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return v1.data.make_one_shot_iterator(finite_input_fn(20)(params)).get_next()

    estimator = make_estimator(tmp_path)
    estimator.train(input_fn)
    assert estimator.get_variable_value("global_step") == 3
    assert estimator.evaluate(input_fn) == estimator.evaluate(finite_input_fn(20))
    np.testing.assert_array_equal([row["inputs"] for row in estimator.predict(input_fn)], X[:20])


def constants(params: dict[str, Any]) -> Any:
    return {"x": X[: params["batch_size"]]}, tf.constant(Y[:8])


def test_constants_feed_every_step(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(constants, steps=9)
    w, b = programs.W0.astype(np.float64)[:, 0], 0.0
    for _ in range(9):
        error = X[:8] @ w + b - Y[:8]
        w, b = w - 0.1 * 2 * (X[:8].T @ error) / 8, b - 0.1 * 2 * error.mean()
    np.testing.assert_allclose(estimator.get_variable_value("linear/w")[:, 0], w, rtol=1e-4)
    rows = estimator.predict(constants)
    np.testing.assert_array_equal([next(rows)["inputs"] for _ in range(19)], X[np.arange(19) % 8])


def test_draws_of_input_fn_follow_the_configs_seed(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return {"x": v1.random_normal([8, 3])}, tf.zeros([8])

    def losses(folder: str, seed: int) -> list[float]:
        settings: dict[str, Any] = {"iterations": 1, "save_summary_steps": 1, "tf_random_seed": seed}
        make_estimator(tmp_path / folder, **settings).train(input_fn, steps=3)
        return programs.losses(tmp_path / folder)

    first = losses("a", 1)
    assert losses("b", 1) == first
    assert losses("c", 2) != first
    assert len(set(first)) == 3


@pytest.mark.parametrize("wrong", [7, "text", [], None, lambda: None])
def test_rejects_input_that_is_neither_a_dataset_nor_tensors(wrong: Any, tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        assert params
        return wrong

    with pytest.raises(TypeError, match=r"input_fn.*tf\.data\.Dataset"):
        make_estimator(tmp_path).train(input_fn, steps=1)


def test_raises_input_fns_own_error_unchanged(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        make_estimator(tmp_path).train(input_fn, steps=1)
