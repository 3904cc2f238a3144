import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.feeding.test_deployment import pretend_tpu as pretend_tpu
from tests.estimator.feeding.test_deployment import tpu_estimator
from tests.estimator.programs import (
    Program,
    X,
    Y,
    make_estimator,
    make_model_fn,
    own_variables,
    side_by_side,
    train_input_fn,
    v1,
)
from tpudata.estimator import CrossShardOptimizer, ModeKeys, NonFiniteError, RunConfig, TPUConfig, TPUEstimatorSpec
from tpudata.estimator.loops.training.pace import LoopSize
from tpudata.estimator.steps.device_train_step import DeviceTrainStep
from tpudata.estimator.steps.plain_train_step import PlainTrainStep
from tpudata.estimator.steps.train_step import TrainStep

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(
        v1.train.exponential_decay(0.1, v1.train.get_global_step(), 5, 0.9, staircase=True)
    ),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
}


def session_loop(optimizer: Callable[[], Any], steps: int, batch: int) -> tuple[list[float], dict[str, Any]]:
    """Return losses and variables of the same program, trained by hand in a v1 graph and session."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer().minimize(loss, v1.train.get_global_step()))

    return in_a_session(model_fn, steps, batch)


def in_a_session(model_fn: Callable[..., Any], steps: int, batch: int) -> tuple[list[float], dict[str, Any]]:
    """Train by hand in a v1 graph and session."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.placeholder(tf.float32, [batch, 3]), v1.placeholder(tf.float32, [batch])
        v1.train.get_or_create_global_step()
        spec = model_fn({"x": x}, y, ModeKeys.TRAIN)
        session.run(v1.global_variables_initializer())
        losses = []
        for i in range(steps):
            rows = np.arange(i * batch, (i + 1) * batch) % len(X)
            losses.append(float(session.run([spec.loss, spec.train_op], {x: X[rows], y: Y[rows]})[0]))
        return losses, {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def test_optimizers_equal_a_session_loop(tmp_path: Path) -> None:
    """All optimizers train side by side: the losses add up, and a difference shows in one optimizer's variables."""

    def minimized(optimizer: Callable[[], Any]) -> Program:
        def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
            loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
            return loss, optimizer().minimize(loss, global_step=steps, var_list=own_variables())

        return program

    model_fn = side_by_side({name: minimized(optimizer) for name, optimizer in OPTIMIZERS.items()})
    losses, values = in_a_session(model_fn, 20, 8)
    estimator = make_estimator(tmp_path, model_fn, iterations=1, save_summary_steps=1)
    estimator.train(train_input_fn, max_steps=20)
    np.testing.assert_allclose(programs.losses(tmp_path), losses, rtol=2e-5)
    ours = programs.variables(estimator)
    assert sorted(ours) == sorted(values)
    for key, value in values.items():
        np.testing.assert_allclose(ours[key], value, rtol=2e-5, atol=1e-6, err_msg=key)


def test_ignores_a_global_step_made_outside_the_estimator(tmp_path: Path) -> None:
    # A global step made eagerly stays in a collection that every later function's graph starts with.
    outside = v1.train.get_or_create_global_step()
    try:
        estimator = make_estimator(tmp_path)
        estimator.train(train_input_fn, max_steps=3)
        assert estimator.get_variable_value("global_step") == 3
        assert int(outside) == 0
    finally:
        v1.get_default_graph().clear_collection(v1.GraphKeys.GLOBAL_STEP)


def test_the_loop_size_does_not_change_the_variables(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, iterations=3)
    estimator.train(train_input_fn, steps=13)
    _, values = session_loop(lambda: v1.train.GradientDescentOptimizer(0.1), 13, 8)
    np.testing.assert_allclose(estimator.get_variable_value("linear/w"), values["linear/w"], rtol=1e-5)
    assert estimator.get_variable_value("global_step") == 13


@pytest.mark.parametrize(("iterations", "replicas"), [(1, 1), (4, 1), (1000, 1), ("1h", 1), (4, 2), ("1h", 2)])
def test_checkpoints_summaries_and_logs_come_at_their_steps(
    iterations: Any, replicas: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {
        "save_checkpoints_steps": 5,
        "save_summary_steps": 3,
        "log_step_count_steps": 7,
        "keep_checkpoint_max": 0,
    }
    with caplog.at_level(logging.INFO, logger="tpudata"):
        estimator = make_estimator(tmp_path, iterations=iterations, tpu_config={"num_replicas": replicas}, **settings)
        estimator.train(train_input_fn, max_steps=17)
    expected, _ = session_loop(lambda: v1.train.GradientDescentOptimizer(0.1), 17, 8)
    assert programs.saved_steps(tmp_path) == [0, 5, 10, 15, 17]
    events = [(step, values["loss"]) for step, values in programs.read_events(tmp_path) if "loss" in values]
    assert [step for step, _ in events] == [1, 4, 7, 10, 13, 16]
    np.testing.assert_allclose([loss for _, loss in events], expected[::3], rtol=2e-5)
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    assert [line.split(":")[0] for line in logged] == ["step 1", "step 8", "step 15", "step 17"]
    estimator.train(train_input_fn, steps=7)
    assert programs.saved_steps(tmp_path) == [0, 5, 10, 15, 17, 22, 24]


@pytest.mark.parametrize("replicas", [1, 2])
def test_does_not_wait_for_a_batch_after_the_last_step(replicas: int, tmp_path: Path) -> None:
    more = threading.Event()

    def rows() -> Iterator[Any]:
        for number in itertools.count():
            if number == 3 * 8:
                more.wait(60)
            yield {"x": X[number % len(X)]}, Y[number % len(Y)]

    def input_fn(params: dict[str, Any]) -> Any:
        signature = {"x": tf.TensorSpec([3])}, tf.TensorSpec([])
        dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
        return dataset.batch(params["batch_size"], drop_remainder=True)

    estimator = make_estimator(tmp_path, iterations=100, tpu_config={"num_replicas": replicas})
    begin = time.monotonic()
    estimator.train(input_fn, steps=3)
    seconds = time.monotonic() - begin
    more.set()
    assert estimator.get_variable_value("global_step") == 3
    assert seconds < 60


@pytest.mark.parametrize(("kind", "replicas"), [(PlainTrainStep, 1), (DeviceTrainStep, 2)])
def test_writes_every_loss_without_shortening_loops(
    kind: type[TrainStep], replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    run = kind.run

    def note(step: Any, iteration: Any, request: Any) -> Any:
        sizes.append(request.max_loop_steps)
        return run(step, iteration, request)

    monkeypatch.setattr(kind, "run", note)
    tpu_config = {"num_replicas": replicas}
    settings: dict[str, Any] = {"save_summary_steps": 1, "log_step_count_steps": None}
    estimator = make_estimator(tmp_path, iterations=20, tpu_config=tpu_config, **settings)
    estimator.train(train_input_fn, steps=50)
    expected, _ = session_loop(lambda: v1.train.GradientDescentOptimizer(0.1), 50, 8)
    assert loop_ends(tmp_path) == list(range(1, 51))
    np.testing.assert_allclose(programs.losses(tmp_path), expected, rtol=2e-5, atol=1e-6)
    assert sizes == [20, 20, 10]


def loop_ends(folder: Path) -> list[int]:
    return [step for step, _ in programs.read_events(folder)]


@pytest.mark.usefixtures("pretend_tpu")
def test_tpu_loops_end_at_the_originals_steps(tmp_path: Path) -> None:
    estimator = tpu_estimator(tmp_path, config=RunConfig(TPUConfig(4), save_summary_steps=1, log_step_count_steps=None))
    estimator.train(train_input_fn, steps=3)
    assert loop_ends(tmp_path) == [3]
    estimator.train(train_input_fn, steps=10)
    assert loop_ends(tmp_path) == [3, 7, 11, 13]
    estimator.train(train_input_fn, max_steps=20)
    assert loop_ends(tmp_path) == [3, 7, 11, 13, 17, 20]


def test_does_not_call_input_fn_once_max_steps_is_reached(tmp_path: Path) -> None:
    def never(params: dict[str, Any]) -> Any:
        raise AssertionError

    estimator = make_estimator(tmp_path)
    assert estimator.train(train_input_fn, max_steps=4) is estimator
    estimator.train(never, max_steps=4)
    make_estimator(tmp_path).train(never, max_steps=2)


def test_traces_once_for_all_loop_lengths_and_calls(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = make_estimator(tmp_path, make_model_fn(calls=calls))
    estimator.train(train_input_fn, steps=7)
    built = len(calls)
    estimator.train(train_input_fn, steps=9)
    estimator.train(train_input_fn, steps=2)
    assert len(calls) == built == 1


# Data that ends within a loop, with a short last batch; and between two loops.
@pytest.mark.parametrize(("rows", "iterations"), [(37, 3), (40, 5)])
def test_the_end_of_data_saves_the_last_step(rows: int, iterations: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, iterations=iterations)
    estimator.train(programs.finite_input_fn(rows), steps=1000)
    assert estimator.get_variable_value("global_step") == 5
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-5")
    w, b = programs.W0.astype(np.float64), 0.0
    for begin in range(0, rows, 8):
        x, y = X[begin : min(begin + 8, rows)], Y[begin : min(begin + 8, rows)]
        error = (x @ w)[:, 0] + b - y
        w, b = w - 0.1 * 2 * (x.T @ error[:, None]) / len(x), b - 0.1 * 2 * error.mean()
    np.testing.assert_allclose(estimator.get_variable_value("linear/w"), w, rtol=1e-4)


def test_empty_data_trains_nothing(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(programs.finite_input_fn(0))
    assert estimator.get_variable_value("global_step") == 0


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    name = "adam"  # the one with the most state

    def input_from(step: int) -> Callable[..., Any]:
        return lambda params: train_input_fn(params).skip(step)

    make_estimator(tmp_path / "a", make_model_fn(OPTIMIZERS[name])).train(input_from(0), max_steps=10)
    make_estimator(tmp_path / "b", make_model_fn(OPTIMIZERS[name])).train(input_from(0), max_steps=4)
    fresh = make_estimator(tmp_path / "b", make_model_fn(OPTIMIZERS[name]))
    fresh.train(input_from(4), max_steps=10)
    whole = programs.variables(make_estimator(tmp_path / "a"))
    parts = programs.variables(fresh)
    assert sorted(whole) == sorted(parts)
    for key, value in whole.items():
        np.testing.assert_array_equal(parts[key], value, err_msg=key)


def random_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    w = v1.get_variable("w", [3, 4], initializer=v1.glorot_uniform_initializer())
    outputs = tf.reduce_sum(v1.nn.dropout(features["x"] @ w, rate=0.5), axis=1)
    loss = tf.reduce_mean((outputs - labels) ** 2)
    step = v1.train.get_global_step()
    return TPUEstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step))


def test_losses_follow_the_seed(tmp_path: Path) -> None:
    def run(folder: str, seed: int | None) -> list[float]:
        estimator = make_estimator(
            tmp_path / folder, random_model_fn, iterations=1, save_summary_steps=1, tf_random_seed=seed
        )
        estimator.train(train_input_fn, steps=5)
        return programs.losses(tmp_path / folder)

    first = run("a", 1)
    assert run("b", 1) == first
    assert run("c", 2) != first
    assert run("d", None) != first


def test_initial_values_do_not_depend_on_an_earlier_evaluation(tmp_path: Path) -> None:
    """Evaluating first makes the variables; training must still start from its own initial values."""
    calls: list[str] = []

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        calls.append(mode)
        if mode == ModeKeys.EVAL:
            tf.zeros([])  # shifts the seeds of the ops after it
        return random_model_fn(features, labels, mode)

    make_estimator(tmp_path / "a", model_fn).train(train_input_fn, steps=1)
    second = make_estimator(tmp_path / "b", model_fn)
    second.evaluate(programs.finite_input_fn(8))
    second.train(train_input_fn, steps=1)
    for folder in "ab":
        assert (tmp_path / folder / "model.ckpt-0.index").exists()
    values = [tf.train.load_variable(str(tmp_path / folder / "model.ckpt-0"), "w") for folder in "ab"]
    np.testing.assert_array_equal(*values)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("replicas", "with_hooks"), [(1, False), (1, True), (2, False), pytest.param(2, True, marks=pytest.mark.matrix)]
)
def test_nan_in_the_input_stops_training_at_its_step(replicas: int, with_hooks: bool, tmp_path: Path) -> None:
    x = X.copy()
    x[8 * 3 + 2, 1] = np.nan  # in the fourth batch

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": x}, Y)).repeat().batch(8, drop_remainder=True)

    hooks = [v1.train.SessionRunHook()] if with_hooks else None
    estimator = make_estimator(tmp_path, iterations=100, tpu_config={"num_replicas": replicas})
    with pytest.raises(NonFiniteError, match=r"step 4: the loss is nan.*'linear/.*model\.ckpt-0") as caught:
        estimator.train(input_fn, hooks=hooks, steps=20)
    assert isinstance(caught.value, v1.train.NanLossDuringTrainingError)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-0")
    # Nor does memory keep the bad values.
    estimator.train(train_input_fn, steps=20)
    assert np.isfinite(estimator.get_variable_value("linear/w")).all()


@pytest.mark.parametrize(
    ("hooks", "replicas"), [(None, 1), ([v1.train.SessionRunHook()], 1), ([v1.train.SessionRunHook()], 2)]
)
def test_an_empty_repeated_dataset_trains_nothing(hooks: Any, replicas: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": replicas})
    dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).filter(lambda _, label: label > 99)
    assert dataset.repeat().cardinality() == tf.data.INFINITE_CARDINALITY
    estimator.train(
        lambda params: dataset.repeat().batch(params["batch_size"], drop_remainder=True), hooks=hooks, steps=5
    )
    assert programs.saved_steps(tmp_path) == [0]
    estimator.train(train_input_fn, hooks=hooks, steps=2)
    assert programs.saved_steps(tmp_path) == [0, 2]
    expected, _ = session_loop(lambda: v1.train.GradientDescentOptimizer(0.1), 2, 8)
    np.testing.assert_allclose(estimator.last_loss, expected[-1], rtol=1e-5)


@pytest.mark.parametrize(
    ("replicas", "with_hooks"),
    [
        *((1, False), (2, True)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((1, True), (2, False))),
    ],
)
def test_names_a_variable_that_is_not_finite(replicas: int, with_hooks: bool, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        outputs = programs.linear(features["x"])
        other = v1.get_variable("other", [2], initializer=v1.ones_initializer())
        loss = tf.reduce_mean((outputs - labels) ** 2)
        step = v1.train.get_global_step()
        bump = tf.where(step >= 5, np.inf, 1.0)
        with tf.control_dependencies([other.assign(other + tf.fill([2], bump))]):
            optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
            train_op = optimizer.minimize(loss, global_step=step)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    tpu_config = {"num_replicas": replicas}
    estimator = make_estimator(tmp_path, model_fn, save_checkpoints_steps=4, tpu_config=tpu_config)
    with pytest.raises(NonFiniteError, match=r"step 8: the variable 'other' contains NaN or Inf.*model\.ckpt-4"):
        estimator.train(train_input_fn, hooks=[v1.train.SessionRunHook()] if with_hooks else None, steps=20)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-4")


def test_saves_checkpoints_by_steps(tmp_path: Path) -> None:
    make_estimator(tmp_path, save_checkpoints_steps=6, keep_checkpoint_max=None).train(train_input_fn, steps=21)
    assert programs.saved_steps(tmp_path) == [0, 6, 12, 18, 21]


def test_saves_checkpoints_by_seconds(tmp_path: Path) -> None:
    make_estimator(tmp_path, save_checkpoints_secs=1e-9, keep_checkpoint_max=0).train(train_input_fn, steps=9)
    assert programs.saved_steps(tmp_path) == [0, 1, 5, 6, 7, 8, 9]  # the second loop's time is not known


def test_saves_nothing_without_an_interval(tmp_path: Path) -> None:
    """As in the original, the next call starts over."""
    estimator = make_estimator(tmp_path, save_checkpoints_secs=None, save_summary_steps=1)
    for _ in range(2):
        estimator.train(train_input_fn, steps=3)
        assert estimator.evaluate(programs.finite_input_fn(8))["global_step"] == 0
    assert [step for step, _ in programs.read_events(tmp_path)] == [1, 2, 3] * 2
    assert programs.saved_steps(tmp_path) == []
    assert estimator.latest_checkpoint() is None
    listener = v1.train.CheckpointSaverListener()
    with pytest.raises(ValueError, match=r"^RunConfig\(save_checkpoints_steps=None, save_checkpoints_secs=None\)"):
        estimator.train(train_input_fn, steps=3, saving_listeners=[listener])
    saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
    estimator.train(train_input_fn, steps=3, saving_listeners=[listener], hooks=[saver])
    assert programs.saved_steps(tmp_path) == [0, 2, 3]


def test_rejects_a_train_op_that_does_not_count_steps(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, train_op=v1.train.GradientDescentOptimizer(0.1).minimize(loss))

    with pytest.raises(ValueError, match=r"global_step=tf\.compat\.v1\.train\.get_global_step"):
        make_estimator(tmp_path, model_fn).train(train_input_fn, steps=4)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"steps": 1, "max_steps": 2}, ValueError),
        ({"steps": 0}, ValueError),
        ({"max_steps": -1}, ValueError),
        ({"steps": 1.0}, TypeError),
        ({"max_steps": 2.5}, TypeError),
        ({"steps": True}, TypeError),
    ],
)
def test_rejects_wrong_steps(limits: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="steps"):
        make_estimator(tmp_path).train(train_input_fn, **limits)


def test_logs_and_writes_rates_at_their_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tpudata"):
        make_estimator(tmp_path, log_step_count_steps=4, save_summary_steps=8).train(train_input_fn, steps=24)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    assert [line.split(":")[0] for line in lines] == [f"step {step}" for step in (1, 5, 9, 13, 17, 21, 24)]
    assert "global_step/sec" not in lines[0]  # that loop compiled
    assert all("global_step/sec" in line and "examples/sec" in line for line in lines[1:-1])
    events = programs.read_events(tmp_path)
    assert [step for step, values in events if "loss" in values] == [1, 9, 17]
    rates = [values for _, values in events if "loss" not in values]
    assert len(rates) == 5
    for values in rates:
        assert values["examples/sec"] == pytest.approx(8 * values["global_step/sec"])


def test_reports_examples_per_second_without_a_batch_size(tmp_path: Path) -> None:
    from tpudata.estimator import TPUEstimator

    def input_fn(params: dict[str, Any]) -> Any:
        assert "batch_size" not in params
        return train_input_fn({"batch_size": 4})

    estimator = TPUEstimator(make_model_fn(), model_dir=str(tmp_path), use_tpu=False)
    estimator.train(input_fn, steps=300)
    rates = [values for _, values in programs.read_events(tmp_path) if "loss" not in values]
    assert [values["examples/sec"] for values in rates] == pytest.approx([4 * v["global_step/sec"] for v in rates])
    assert len(rates) == 2


def test_adapts_the_loop_size_to_its_time() -> None:

    size = LoopSize(TPUConfig("10s"))
    assert size.next(0, ()) == 1
    size.fit(1, 60.0)  # compiling
    assert size.next(1, (None,)) == 1
    size.fit(1, 0.5)
    assert size.next(2, ()) == 10  # towards 20, but not more than ten times what was measured
    size.fit(10, 5.0)
    assert size.next(12, ()) == 20
    assert size.next(12, (19, None, 30)) == 7
    size.fit(20, 1000.0)
    assert size.next(32, ()) == 1


def test_loops_by_time_run_the_exact_number_of_steps(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, iterations="1h")
    estimator.train(train_input_fn, max_steps=57)
    assert estimator.get_variable_value("global_step") == 57


def test_a_short_run_keeps_and_logs_the_last_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator(tmp_path, save_summary_steps=1)
    assert estimator.last_loss is None
    with caplog.at_level(logging.INFO, logger="tpudata"):
        estimator.train(train_input_fn, max_steps=6)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    losses, _ = session_loop(lambda: v1.train.GradientDescentOptimizer(0.1), 6, 8)
    assert lines == [f"step {step}: loss = {programs.losses(tmp_path)[step - 1]:.6g}" for step in (1, 6)]
    assert estimator.last_loss == pytest.approx(losses[-1], rel=1e-5)
    before = estimator.last_loss
    estimator.train(train_input_fn, max_steps=6)
    assert estimator.last_loss == before


@pytest.mark.parametrize("steps", [4, 6])
def test_does_not_save_a_variable_that_a_hook_set_to_nan(steps: int, tmp_path: Path) -> None:
    class Spoils(v1.train.SessionRunHook):  # type: ignore[misc]
        """Assigns NaN after the last step."""

        def begin(self) -> None:
            (variable,) = (item for item in v1.trainable_variables() if "linear/b" in item.name)
            self._spoil = v1.assign(variable, [np.nan])
            self._calls = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002  (called with all arguments)
            self._calls += 1
            if self._calls == steps:
                run_context.session.run(self._spoil)

    estimator = make_estimator(tmp_path, iterations=2)
    with pytest.raises(NonFiniteError, match=rf"step {steps}: the variable 'linear/b' contains NaN.*model\.ckpt-0"):
        estimator.train(train_input_fn, hooks=[Spoils()], steps=steps)
    assert programs.saved_steps(tmp_path) == [0]
