"""Operations with an effect in a model_fn's graph, compared with what the original TPUEstimator did with them.

The cases are those of scripts/oracle_tf215. The numbers are the original's, on TensorFlow 2.15.1: from w = 3 (10 or 20 in a
checkpoint) each step multiplies w by 0.8.
"""

import importlib.util
import logging
import re
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
    # tf.layers and tf.keras as they are with TF_USE_LEGACY_KERAS=1.
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
# Two replicas take the first one's values; it has the first two rows of a batch, whose mean is always 1.
FIRST_HALF = [[1 - 0.5**step] for step in range(9)]
ON_TWO = {
    **ORIGINAL,
    "batch_norm_in_train_op": {NORM: FIRST_HALF},
    "keras_batch_norm_in_train_op": {NORM: FIRST_HALF},
    "metric_in_train_op": {"counter": [0.0, *[1.0] * 8]},
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
# These depend on an evaluation or a prediction in between, or on where training resumes. The others are
# trained in one call, which takes a third of the time.
IN_PARTS = {
    *LOSSES,
    *PREDICTED,
    *("init_by_list", "init_in_every_mode_but_of_no_use", "init_in_scaffold_fn", "init_op_of_scaffold_fn"),
    *("metric_in_train_op", "local_variable_in_train_op", "mutable_table"),
    *("batch_norm_in_train_op", "condition_in_train_op", "function_in_train_op"),
}
# Cases that one graph can hold next to each other, each in the variable scope NAME.
TOGETHER: dict[str, list[str]] = {
    "unused": [
        *("counter_unused", "update_ops_unused", "batch_norm_unused", "average_unused", "global_step_counted_twice"),
        *("second_optimizer_unused", "assign_unused", "initializer_unused", "python_function_unused"),
        *("assertion_unused", "condition_unused", "unused_in_condition", "unused_in_loop", "function_unused"),
        *("metric_unused", "mutable_table_unused", "keras_batch_norm_unused"),
    ],
    "used": [
        *("init_by_variable", "init_by_list", "counter_in_train_op", "counter_before_loss", "batch_norm_in_train_op"),
        *("average_in_train_op", "python_function_in_train_op", "condition_in_train_op", "function_in_train_op"),
        *("metric_in_train_op", "local_variable_in_train_op", "static_table", "mutable_table"),
        *("assigned_in_evaluation", "unused_in_evaluation", "assigned_in_prediction"),
    ],
    "asked for": [
        *("keras_batch_norm_in_train_op", "summary_with_effect", "host_call_with_effect"),
        *("hook_runs_operation", "hook_runs_group", "hook_fetches_effect"),
    ],
}
_IN_A_GRAPH = {name for names in TOGETHER.values() for name in names}
# test_init_from_checkpoint_loads_values_once tests the same.
_ELSEWHERE = {"init_by_prefix", "init_in_scaffold_fn"}
ALONE = [
    pytest.param(name, marks=pytest.mark.matrix) if name in _IN_A_GRAPH | _ELSEWHERE else name for name in ORIGINAL
]
# One rejected case of each kind is enough on two replicas.
ALONE_ON_TWO = [
    pytest.param(name, marks=pytest.mark.matrix)
    if name not in ("python_function_in_train_op", "mutable_table", "static_table")
    else name
    for name in ORIGINAL
]


class Part:
    """A module with a TPUEstimatorSpec that keeps its arguments, for a case that is a part of a model."""

    CrossShardOptimizer = CrossShardOptimizer

    @staticmethod
    def TPUEstimatorSpec(mode: str, **fields: Any) -> dict[str, Any]:  # noqa: N802
        del mode
        return fields


def joined(cases: Any, names: list[str], checkpoint: str, calls: list[str]) -> Any:
    """Return the model_fn of several cases: the sum of their losses, and what each of them runs."""

    class Model(cases.Model):  # type: ignore[misc]
        """A case whose optimizer counts no steps: the model counts them once for all cases."""

        def minimize(self, loss: Any = None) -> Any:
            optimizer = self.wrapped(v1.train.GradientDescentOptimizer(0.1))
            return optimizer.minimize(self.loss if loss is None else loss, var_list=[self.w])

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        parts = {}
        for name in names:
            with v1.variable_scope(name):
                parts[name] = cases.CASES[name](Model(Part, mode, features, checkpoint, calls))
        if mode == "infer":
            return TPUEstimatorSpec(mode, predictions={name: part["predictions"]["w"] for name, part in parts.items()})
        losses = {name: part["loss"] for name, part in parts.items()}
        total = tf.add_n(list(losses.values()))
        if mode == "eval":
            rows = {name: tf.reshape(loss, [1]) for name, loss in losses.items()}
            means = (lambda **values: {name: v1.metrics.mean(value) for name, value in values.items()}, rows)
            return TPUEstimatorSpec(mode, loss=total, eval_metrics=means)
        hosted = [part["host_call"] for part in parts.values() if "host_call" in part]
        return TPUEstimatorSpec(
            mode,
            loss=total,
            train_op=tf.group(v1.train.get_global_step().assign_add(1), *(part["train_op"] for part in parts.values())),
            training_hooks=[hook for part in parts.values() for hook in part.get("training_hooks", ())],
            host_call=hosted[0] if hosted else None,
        )

    return model_fn


def built(
    folder: Path,
    cases: Any,
    names: str | list[str],
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
    alone = cases.model_fn(tpu, names, checkpoint, calls)
    model_fn = alone if isinstance(names, str) else joined(cases, names, checkpoint, calls)
    return TPUEstimator(model_fn, config=run_config, use_tpu=False, **sizes)


def run(cases: Any, in_parts: bool, estimator: TPUEstimator, calls: list[str]) -> dict[str, Any]:
    """Train for 8 steps; in parts with an evaluation, a prediction and a restart after 6. Return the results."""
    if in_parts:
        found: dict[str, Any] = cases.run(estimator, calls)
        return found
    try:
        estimator.train(cases.input_fn, max_steps=8)
    except Exception as problem:
        return {"error": type(problem).__name__, "calls": len(calls)}
    return {"calls": len(calls)}


# tf.layers is deprecated, and layers of TF 2 have no `updates`.
WARNINGS = pytest.mark.filterwarnings(
    "ignore:.*batch_normalization` is deprecated", "ignore:`layer.updates` will be removed"
)


@pytest.mark.cases(3)
@WARNINGS
@pytest.mark.parametrize("name", ALONE)
def test_effects_equal_the_original(name: str, cases: Any, checkpoint: str, tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = built(tmp_path, cases, name, checkpoint, calls, iterations_per_loop=1)
    found = run(cases, name in IN_PARTS, estimator, calls)
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
@WARNINGS
@pytest.mark.parametrize("name", ALONE_ON_TWO)
def test_effects_on_two_replicas_equal_the_original(name: str, cases: Any, checkpoint: str, tmp_path: Path) -> None:
    calls: list[str] = []
    config = {"iterations_per_loop": 3, "num_replicas": 2}
    found = run(cases, name in IN_PARTS, built(tmp_path, cases, name, checkpoint, calls, every=6, **config), calls)
    if name in cases.REJECTED:
        assert found["error"] == "ModelFnValueError"
        return
    assert "error" not in found
    assert found["calls"] == 0
    values = cases.values_by_step(tmp_path)
    assert values["global_step"] == [0, 6, 8]
    for variable, expected in ON_TWO[name].items():
        at_saves = [expected[step] for step in (0, 6, 8)]
        np.testing.assert_allclose(values[variable], at_saves, rtol=1e-5, err_msg=variable)


@pytest.mark.cases(2)
@WARNINGS
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("group", TOGETHER)
def test_effects_in_one_graph_equal_the_original(
    group: str, replicas: int, cases: Any, checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tpudata")
    names = [name for name in TOGETHER[group] if replicas == 1 or name not in cases.REJECTED]
    calls: list[str] = []
    every, loop = (1, 1) if replicas == 1 else (6, 3)
    config = {"iterations_per_loop": loop, "num_replicas": replicas}
    estimator = built(tmp_path, cases, names, checkpoint, calls, every=every, **config)
    # Resumed after 6 steps; the other cases on two replicas use one call, which takes half of the time.
    if replicas == 1 or group == "used":
        estimator.train(cases.input_fn, max_steps=6)
    if group == "used":
        metrics = estimator.evaluate(cases.input_fn, steps=2)
        rows = next(estimator.predict(cases.one_batch))
        assert {name: metrics[name] for name in names if name in LOSSES} == pytest.approx(
            {name: LOSSES[name] for name in names if name in LOSSES}, rel=1e-5
        )
        assert {name: rows[name] for name in names if name in PREDICTED} == pytest.approx(
            {name: PREDICTED[name] for name in names if name in PREDICTED}, rel=1e-5
        )
    estimator.train(cases.input_fn, max_steps=8)
    # One warning covers all updates that train_op does not run, also batch norm's.
    assert [line.partition(" in ")[0].partition("update ")[2] for line in caplog.messages if "UPDATE_OPS" in line] == (
        ["'update_ops_unused/AssignAddVariableOp' and 2 more"] if group == "unused" else []
    )
    assert len(calls) == sum(CALLS.get(name, 0) for name in names)
    values = cases.values_by_step(tmp_path)
    saved = [0, *range(every, 8, every), 8]
    assert values["global_step"] == saved
    for name in names:
        for variable, expected in (ORIGINAL if replicas == 1 else ON_TWO)[name].items():
            # Keras numbers its layers through the graph.
            own = [key for key in values if re.fullmatch(f"{name}/(.*/)?{variable}", re.sub(r"_\d+/", "/", key))]
            (key,) = own or [variable]
            at_saves = [expected[step] for step in saved]
            np.testing.assert_allclose(values[key], at_saves, rtol=1e-5, err_msg=f"{name}: {variable}")


def test_a_written_summary_runs_its_dependencies(cases: Any, tmp_path: Path) -> None:
    estimator = built(tmp_path, cases, "summary_with_effect", "", [], summaries=3, iterations_per_loop=1)
    estimator.train(cases.input_fn, steps=8)
    written = [values["counted"] for _, values in programs.read_events(tmp_path) if "counted" in values]
    assert written == [float(number) for number in range(1, len(written) + 1)]
    assert estimator.get_variable_value("counter") == len(written) < 8


def test_a_failed_assertion_before_the_loss_ends_training(cases: Any, tmp_path: Path) -> None:
    found = cases.run(built(tmp_path, cases, "assertion_before_loss", "", []), [])
    assert found["error"] == "InvalidArgumentError"


def test_assertions_are_compiled_away_on_several_replicas(cases: Any, tmp_path: Path) -> None:
    estimator = built(tmp_path, cases, "assertion_before_loss", "", [], num_replicas=2)
    estimator.train(cases.input_fn, max_steps=2)
    assert estimator.get_variable_value("w") == pytest.approx(powers(3.0)[2])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_keras_layers_and_optimizers_run_their_updates(package: str, replicas: int, cases: Any, tmp_path: Path) -> None:
    """None of the updates is in the train_op: Keras relies on TensorFlow 2 for that, also in its conditions.

    The layers and updates of tf_keras are the original's.
    """
    keras = pytest.importorskip(package)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        out = keras.layers.BatchNormalization(momentum=0.5)(features["x"], training=True)
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        loss = tf.reduce_mean(dense(features["x"]) ** 2) + 0.0 * tf.reduce_mean(out)
        inner = keras.optimizers.SGD(0.01, momentum=0.9)
        if package == "keras":  # It updates in a condition.
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
    averages = MEAN if replicas == 1 else FIRST_HALF
    mean = averages[4] if package == "keras" else [0.0]
    np.testing.assert_allclose(estimator.get_variable_value(NORM), mean, rtol=1e-5)


class Asking(v1.train.SessionRunHook):  # type: ignore[misc]
    """Requests an operation of model_fn at every second step."""

    def __init__(self) -> None:
        self._steps = 0

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        self._steps += 1
        return v1.train.SessionRunArgs("count") if self._steps % 2 else None


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_operation_runs_only_in_steps_that_a_hook_requests(replicas: int, cases: Any, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer(), trainable=False)
        tf.group(counter.assign_add(1.0 + 0 * features["x"][0, 0]), name="count")
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        loss = tf.reduce_sum(v1.get_variable("w", initializer=[1.0]) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    estimator = make_estimator(tmp_path, model_fn, batch_size=4, tpu_config={"num_replicas": replicas})
    estimator.train(cases.input_fn, steps=5, hooks=[Asking()])
    assert estimator.get_variable_value("counter") == 3
    estimator.train(cases.input_fn, steps=5)
    assert estimator.get_variable_value("counter") == 3
