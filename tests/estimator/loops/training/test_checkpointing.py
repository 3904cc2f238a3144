# ruff: noqa: ARG002  (hooks and listeners are called with all arguments)
"""Saving listeners."""

import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.programs import finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.estimator import EvalSpec, TrainSpec, train_and_evaluate

REPLICAS = pytest.mark.parametrize("replicas", [1, 2])


class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    def __init__(self, folder: Path, stop_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self._folder = folder
        self._stop_at = stop_at

    def begin(self) -> None:
        self._step = v1.train.get_global_step() + 0
        self.calls.append("begin")

    def _note(self, what: str, session: Any, step: int) -> None:
        assert session.run(self._step) == step
        self.calls.append((what, step, (self._folder / f"model.ckpt-{step}.index").exists()))

    def before_save(self, session: Any, global_step_value: int) -> None:
        self._note("before", session, global_step_value)

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self._note("after", session, global_step_value)
        return global_step_value == self._stop_at

    def end(self, session: Any, global_step_value: int) -> None:
        self._note("end", session, global_step_value)


def saves(*steps: int) -> list[Any]:
    return [(what, step, what == "after") for step in steps for what in ("before", "after")]


@REPLICAS
def test_listeners_see_every_checkpoint(replicas: int, tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    estimator = make_estimator(tmp_path, iterations=2, save_checkpoints_steps=4, tpu_config={"num_replicas": replicas})
    assert estimator.train(train_input_fn, steps=10, saving_listeners=[listener]) is estimator
    assert listener.calls == ["begin", *saves(0, 4, 8, 10), ("end", 10, True)]
    # Listeners are called again for the checkpoint that training starts from.
    again = Listener(tmp_path)
    estimator.train(train_input_fn, steps=1, saving_listeners=[again])
    assert again.calls == ["begin", ("before", 10, True), ("after", 10, True), *saves(11), ("end", 11, True)]


def test_a_listener_can_stop_training(tmp_path: Path) -> None:
    listener = Listener(tmp_path, stop_at=4)
    estimator = make_estimator(tmp_path, iterations=2, save_checkpoints_steps=2)
    estimator.train(train_input_fn, steps=100, saving_listeners=[listener])
    assert listener.calls[-1] == ("end", 4, True)
    assert estimator.get_variable_value("global_step") == 4


def test_rejects_objects_that_are_not_listeners(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="CheckpointSaverListener instances"):
        make_estimator(tmp_path).train(train_input_fn, steps=1, saving_listeners=[object()])
    with pytest.raises(TypeError, match="CheckpointSaverListener instances"):
        TrainSpec(train_input_fn, saving_listeners=[v1.train.SessionRunHook()])
    with pytest.raises(TypeError, match="Put it into a list"):
        TrainSpec(train_input_fn, saving_listeners=v1.train.CheckpointSaverListener())
    for spec in (TrainSpec, EvalSpec):
        with pytest.raises(TypeError, match="SessionRunHook instances"):
            spec(train_input_fn, hooks=[object()])


class Counter(v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1


@pytest.mark.parametrize("saver_hook", [False, True])
def test_train_and_evaluate_calls_hooks_and_listeners(saver_hook: bool, tmp_path: Path) -> None:
    training, evaluating, listener = Counter(), Counter(), Listener(tmp_path)
    hooks: list[Any] = [training]
    if saver_hook:
        hooks.append(v1.train.CheckpointSaverHook(str(tmp_path), save_steps=3))
    estimator = make_estimator(tmp_path, save_checkpoints_steps=3)
    train_spec = TrainSpec(train_input_fn, 7, hooks, [listener])
    evaluation = EvalSpec(finite_input_fn(16), None, None, [evaluating], throttle_secs=0)
    result, _ = train_and_evaluate(estimator, train_spec, evaluation)
    v1.summary.FileWriterCache.clear()
    assert result is not None
    assert result["global_step"] == 7
    assert training.runs == 7
    assert evaluating.runs == 3 * 2  # steps 3, 6 and 7, two batches each
    assert listener.calls == ["begin", *saves(0, 3, 6, 7), ("end", 7, True)]
    steps = [event.step for path in (tmp_path / "eval").iterdir() for event in v1.train.summary_iterator(str(path))]
    assert sorted({step for step in steps if step}) == [3, 6, 7]
    assert tf.executing_eagerly()


def test_each_save_logs_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=2).train(train_input_fn, steps=2)
    capfd.readouterr()
    with caplog.at_level(logging.INFO):
        estimator.train(train_input_fn, steps=4)
    assert [record.name for record in caplog.records] == ["tpudata"] * len(caplog.records)
    saved = [f"Saved {tmp_path}/model.ckpt-{step}." for step in (4, 6)]
    assert [message for message in caplog.messages if "step" not in message] == saved
    assert capfd.readouterr() == ("", "")
