"""Operations with an effect in a model_fn's graph, compared with what the original TPUEstimator did with them.

The cases are those of scripts/oracle_tf215. The numbers are the original's, on TensorFlow 2.15.1: from w = 3 (10 or 20 in a
checkpoint) each step multiplies w by 0.8.
"""

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras.src.legacy_tf_layers import normalization

from tests.estimator import programs
from tests.estimator.programs import make_estimator, v1
from tpudata import estimator as tpu
from tpudata.estimator import CrossShardOptimizer, RunConfig, TPUConfig, TPUEstimator, TPUEstimatorSpec

SCRIPT = Path(__file__).parents[3] / "scripts" / "tf215" / "effect_cases.py"


@pytest.fixture(scope="module")
def cases() -> Any:
    spec = importlib.util.spec_from_file_location("effect_cases", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # What tf.layers and tf.keras are with TF_USE_LEGACY_KERAS=1.
    module.layers = lambda: normalization
    module.keras = lambda: tf_keras
    return module


@pytest.fixture(scope="module")
def checkpoint(cases: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: str = cases.write_checkpoint(tmp_path_factory.mktemp("first"))
    return path


def powers(start: float, count: int = 9) -> list[float]:
    return [start * 0.8**step for step in range(count)]


STEPS = [float(step) for step in range(9)]
ZEROS = [0.0] * 9
EVERY_SECOND = [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
MEAN = [[0.0], [0.75], [1.375], [1.4375], [1.71875], [1.609375], [1.8046875], [1.65234375], [1.826171875]]
NORM = "batch_normalization/moving_mean"
AVERAGE = "w/ExponentialMovingAverage"
# The variables after 0, 1, ... 8 steps, with an evaluation and a prediction after 6.
ORIGINAL: dict[str, dict[str, Any]] = {
    "init_by_name": {"w": powers(10.0)},
    "init_by_prefix": {"w": powers(3.0), "mine/w": [20.0] * 9},
    "init_by_variable": {"w": powers(20.0)},
    "init_by_list": {"w": powers(3.0), "p/part_0": [[1.0, 2.0]] * 9, "p/part_1": [[3.0, 4.0]] * 9},
    "init_of_partitions_by_name": {"w": powers(3.0), "p/part_0": [[1.0, 2.0]] * 9, "p/part_1": [[3.0, 4.0]] * 9},
    "init_twice": {"w": powers(20.0)},
    "init_in_every_mode_but_of_no_use": {"w": powers(10.0), "counter": STEPS},
    "init_in_scaffold_fn": {"w": powers(10.0)},
    "init_in_scaffold_fn_over_model_fn": {"w": powers(20.0)},
    "init_op_of_scaffold_fn": {"w": powers(3.0)},
    "counter_unused": {"w": powers(3.0), "counter": ZEROS},
    "counter_in_train_op": {"w": powers(3.0), "counter": STEPS},
    "counter_before_loss": {"w": powers(3.0), "counter": STEPS},
    "update_ops_unused": {"w": powers(3.0), "counter": ZEROS},
    "batch_norm_unused": {NORM: [[0.0]] * 9},
    "batch_norm_in_train_op": {NORM: MEAN},
    "keras_batch_norm_unused": {NORM: [[0.0]] * 9},
    "keras_batch_norm_in_train_op": {NORM: MEAN},
    "average_unused": {"w": powers(3.0), AVERAGE: [3.0] * 9},
    "average_in_train_op": {AVERAGE: [3.0, 2.7, 2.31, 1.923, 1.5759, 1.27947, 1.0329511, 0.8310483, 0.6671824]},
    "global_step_counted_twice": {"w": powers(3.0), "global_step": STEPS},
    "second_optimizer_unused": {"w": powers(3.0), "other": [1.0] * 9, "other/Momentum": ZEROS},
    "assign_unused": {"w": powers(3.0)},
    "initializer_unused": {"w": powers(3.0)},
    "python_function_unused": {"w": powers(3.0)},
    "python_function_in_train_op": {"w": powers(3.0)},
    "assertion_unused": {"w": powers(3.0)},
    "condition_unused": {"counter": ZEROS},
    "condition_in_train_op": {"counter": STEPS},
    "unused_in_condition": {"counter": ZEROS},
    "unused_in_loop": {"counter": ZEROS},
    "function_unused": {"counter": ZEROS},
    "function_in_train_op": {"counter": STEPS},
    "metric_unused": {"w": powers(3.0)},
    "metric_in_train_op": {"counter": [0.0, 1.5, 1.75, 1.6666667, 1.75, 1.7, 1.75, 1.5, 1.75]},
    "local_variable_in_train_op": {"counter": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0]},
    "static_table": {"w": powers(3.0), "counter": [2.0 * step for step in STEPS]},
    "mutable_table": {"counter": STEPS},
    "mutable_table_unused": {"counter": ZEROS},
    "summary_with_effect": {"counter": STEPS},
    "host_call_with_effect": {"counter": STEPS},
    "hook_runs_operation": {"counter": EVERY_SECOND},
    "hook_runs_group": {"counter": EVERY_SECOND, "other": [2 * value for value in EVERY_SECOND]},
    "hook_fetches_effect": {"counter": EVERY_SECOND},
    "assigned_in_evaluation": {"counter": STEPS},
    "unused_in_evaluation": {"counter": STEPS},
    "assigned_in_prediction": {"counter": STEPS},
}
LOSSES = {
    "assigned_in_evaluation": 156.0,
    "unused_in_evaluation": 6.0,
    "static_table": 2.6184754,
    "init_by_name": 6.8719459,
}
PREDICTED = {
    "assigned_in_evaluation": 6.0,
    "assigned_in_prediction": 106.0,
    "static_table": 2.0,
    "init_by_name": 2.6214397,
}
CALLS = {"python_function_in_train_op": 8}
# What these do depends on an evaluation or a prediction in between, or on where training is taken up again. The others are
# trained in one call, which takes a third of the time.
IN_PARTS = {
    *LOSSES,
    *PREDICTED,
    *("init_by_list", "init_in_every_mode_but_of_no_use", "init_in_scaffold_fn", "init_op_of_scaffold_fn"),
    *("metric_in_train_op", "local_variable_in_train_op", "mutable_table"),
    *("batch_norm_in_train_op", "condition_in_train_op", "function_in_train_op"),
}
# On two replicas: another of their kind is tested there, and on one replica each of them.
OF_A_KIND = {
    *(
        "init_by_prefix",
        "init_by_variable",
        "init_of_partitions_by_name",
        "init_twice",
        "init_in_every_mode_but_of_no_use",
    ),
    *("init_in_scaffold_fn", "init_in_scaffold_fn_over_model_fn", "init_op_of_scaffold_fn", "init_by_list"),
    *("batch_norm_unused", "keras_batch_norm_unused", "unused_in_evaluation"),
    *("average_unused", "assign_unused", "initializer_unused", "assertion_unused", "python_function_unused"),
    *("second_optimizer_unused", "metric_unused", "mutable_table_unused", "condition_unused", "unused_in_loop"),
    *("function_unused", "hook_runs_group"),
}


def built(
    folder: Path,
    cases: Any,
    name: str,
    checkpoint: str,
    calls: list[str],
    every: int = 1,
    summaries: int = 1,
    **config: Any,
) -> TPUEstimator:
    run_config = RunConfig(
        tpu_config=TPUConfig(**config),
        model_dir=str(folder),
        save_checkpoints_steps=every,
        save_summary_steps=summaries,
        keep_checkpoint_max=0,
        tf_random_seed=1,
    )
    sizes: dict[str, Any] = {"train_batch_size": 4, "eval_batch_size": 4, "predict_batch_size": 4}
    return TPUEstimator(cases.model_fn(tpu, name, checkpoint, calls), config=run_config, use_tpu=False, **sizes)


def run(cases: Any, name: str, estimator: TPUEstimator, calls: list[str]) -> dict[str, Any]:
    """Train for 8 steps; with an evaluation, a prediction and another start after 6 if they matter. Return what came of it."""
    if name in IN_PARTS:
        found: dict[str, Any] = cases.run(estimator, calls)
        return found
    try:
        estimator.train(cases.input_fn, max_steps=8)
    except Exception as problem:
        return {"error": type(problem).__name__, "calls": len(calls)}
    return {"calls": len(calls)}


# tf.layers is deprecated, and layers of TF 2 have no `updates`.
@pytest.mark.filterwarnings("ignore:.*batch_normalization` is deprecated", "ignore:`layer.updates` will be removed")
@pytest.mark.parametrize("name", ORIGINAL)
def test_equals_the_original(name: str, cases: Any, checkpoint: str, tmp_path: Path) -> None:
    calls: list[str] = []
    found = run(cases, name, built(tmp_path, cases, name, checkpoint, calls, iterations_per_loop=1), calls)
    values = cases.values_by_step(tmp_path)
    for variable, expected in ORIGINAL[name].items():
        np.testing.assert_allclose(values[variable], expected, rtol=1e-5, err_msg=variable)
    assert "error" not in found
    assert found["calls"] == CALLS.get(name, 0)
    if name in LOSSES:
        assert found["loss"] == pytest.approx(LOSSES[name], rel=1e-5)
    if name in PREDICTED:
        assert found["predicted"] == pytest.approx([PREDICTED[name]], rel=1e-5)


# In loops of three steps. The rows of a batch are split.
@pytest.mark.filterwarnings("ignore:.*batch_normalization` is deprecated", "ignore:`layer.updates` will be removed")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.matrix) if name in OF_A_KIND else name for name in ORIGINAL]
)
def test_two_replicas_equal_the_original(name: str, cases: Any, checkpoint: str, tmp_path: Path) -> None:
    calls: list[str] = []
    config = {"iterations_per_loop": 3, "num_replicas": 2}
    found = run(cases, name, built(tmp_path, cases, name, checkpoint, calls, every=6, **config), calls)
    if name in cases.ONE_REPLICA:
        assert found["error"] in ("ModelFnValueError", "RuntimeError")
        return
    assert "error" not in found
    assert found["calls"] == 2 * CALLS.get(name, 0)
    values = cases.values_by_step(tmp_path)
    assert values["global_step"] == [0, 6, 8]
    for variable, expected in ORIGINAL[name].items():
        at_saves = [expected[step] for step in (0, 6, 8)]
        np.testing.assert_allclose(values[variable], at_saves, rtol=1e-5, err_msg=variable)


@pytest.mark.filterwarnings("ignore:.*batch_normalization` is deprecated", "ignore:`layer.updates` will be removed")
@pytest.mark.parametrize(
    ("name", "count"), [("batch_norm_unused", 1), ("batch_norm_in_train_op", 0), ("update_ops_unused", 1)]
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_warns_of_updates_that_do_not_run(
    name: str, count: int, replicas: int, cases: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tpudata"):
        built(tmp_path, cases, name, "", [], num_replicas=replicas).train(cases.input_fn, steps=2)
    assert sum("UPDATE_OPS" in record.getMessage() for record in caplog.records) == count


def test_a_summary_runs_what_it_depends_on_when_it_is_written(cases: Any, tmp_path: Path) -> None:
    estimator = built(tmp_path, cases, "summary_with_effect", "", [], summaries=3, iterations_per_loop=1)
    estimator.train(cases.input_fn, steps=8)
    written = [values["counted"] for _, values in programs.read_events(tmp_path) if "counted" in values]
    assert written == [float(number) for number in range(1, len(written) + 1)]
    assert estimator.get_variable_value("counter") == len(written) < 8


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_failed_assertion_that_the_loss_waits_for_ends_training(replicas: int, cases: Any, tmp_path: Path) -> None:
    found = cases.run(built(tmp_path, cases, "assertion_before_loss", "", [], num_replicas=replicas), [])
    assert found["error"] == "InvalidArgumentError"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_keras_layers_and_optimizers_run_their_updates(package: str, replicas: int, cases: Any, tmp_path: Path) -> None:
    """Nothing of them is in the train_op: Keras counts on TensorFlow 2 for that, in its conditions, too.

    The layers of tf_keras are those of the original, and so are their updates.
    """
    keras = pytest.importorskip(package)
    in_condition = package == "keras" and replicas == 1  # On several replicas TensorFlow cannot update there.

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        out = keras.layers.BatchNormalization(momentum=0.5)(features["x"], training=True)
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        loss = tf.reduce_mean(dense(features["x"]) ** 2) + 0.0 * tf.reduce_mean(out)
        inner = keras.optimizers.SGD(0.01, momentum=0.9)
        if in_condition:
            inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
        optimizer = tpu.CrossShardOptimizer(inner)
        train_op = optimizer.minimize(loss, v1.train.get_global_step(), var_list=[raw(dense.kernel)])
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def raw(variable: Any) -> Any:
        return variable.value if package == "keras" else variable

    config = RunConfig(TPUConfig(num_replicas=replicas), model_dir=str(tmp_path))
    estimator = TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=4)
    estimator.train(cases.input_fn, steps=4)
    kernel, velocity = 1.0, 0.0
    batches = np.array([[-1.0, 3.0, 1.0, 3.0], [0.0, 2.0, 4.0, 2.0]])
    for step in range(4):
        velocity = 0.9 * velocity - 0.01 * 2 * kernel * np.mean(batches[step % 2] ** 2)
        kernel += velocity
    np.testing.assert_allclose(estimator.get_variable_value("dense/kernel"), [[kernel]], rtol=1e-5)
    mean = MEAN[4] if package == "keras" else [0.0]
    np.testing.assert_allclose(estimator.get_variable_value(NORM), mean, rtol=1e-5)


# First values, from model_fn and scaffold_fn; a step multiplies the weight by 0.8.
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


# Every map in a model_fn on one replica, and some of them elsewhere.
SOME = {
    ("scaffold_fn", 1, "names"),
    ("model_fn", 2, "prefixes"),
    ("model_fn", 2, "a list"),
    ("scaffold_fn", 2, "a list"),
}


@pytest.mark.parametrize(
    ("name", "place", "replicas"),
    [
        pytest.param(
            name,
            place,
            replicas,
            marks=[] if (place, replicas) == ("model_fn", 1) or (place, replicas, name) in SOME else pytest.mark.matrix,
        )
        for replicas in (1, 2)
        for place in ("model_fn", "scaffold_fn")
        for name in MAPS
    ],
)
def test_values_of_a_checkpoint_are_taken_once(
    name: str, place: str, replicas: int, given: str, tmp_path: Path
) -> None:
    model_fn, first = restoring(given, name, in_scaffold=place == "scaffold_fn"), MAPS[name][2]
    estimator = trained(tmp_path, model_fn, replicas)
    variable = {"names": "w", "a list": "new/w/part_0", "partitioned": "new/w/part_0"}.get(name, "new/w")
    start = tf.train.load_variable(str(tmp_path / "model.ckpt-0"), variable)
    assert start == [np.float32(first)]
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8**FEW], rtol=1e-6)
    trained(tmp_path, model_fn, replicas)  # taken up again
    np.testing.assert_allclose(estimator.get_variable_value(variable), [first * 0.8 ** (2 * FEW)], rtol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_first_value_that_depends_on_another(replicas: int, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", initializer=[3.0])
        doubled = v1.get_variable("doubled", initializer=2 * w.initial_value, trainable=False)
        return spec_of(mode, w + 0 * doubled)

    assert trained(tmp_path, model_fn, replicas).get_variable_value("doubled") == [6]


class Asking(v1.train.SessionRunHook):  # type: ignore[misc]
    """Asks for an operation of model_fn with every second step."""

    def __init__(self) -> None:
        self._steps = 0

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        self._steps += 1
        return v1.train.SessionRunArgs("count") if self._steps % 2 else None


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_operation_runs_in_the_steps_that_a_hook_asks_for_it(replicas: int, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer(), trainable=False)
        tf.group(counter.assign_add(1.0 + 0 * features["x"][0, 0]), name="count")
        return spec_of(mode, v1.get_variable("w", initializer=[1.0]))

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": replicas})
    estimator.train(input_fn, steps=FEW, hooks=[Asking()])
    assert estimator.get_variable_value("counter") == 3
    estimator.train(input_fn, steps=FEW)
    assert estimator.get_variable_value("counter") == 3
