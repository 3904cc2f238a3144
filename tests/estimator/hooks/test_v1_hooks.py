# ruff: noqa: ARG002  (hooks and listeners are called with all arguments)
"""TensorFlow's own hooks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.estimator import programs
from tests.estimator.hooks.recording import build, trajectory
from tests.estimator.programs import train_input_fn, v1

# All hooks see the same on two replicas: test_monitor.py and test_saving.py test that.
REPLICAS = pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.matrix)])


def test_stop_at_step_hook_stops_at_its_step(tmp_path: Path) -> None:
    estimator = build(tmp_path, hooks=lambda **_: [v1.train.StopAtStepHook(num_steps=3)])
    estimator.train(train_input_fn, steps=50)
    assert estimator.get_variable_value("global_step") == 3
    estimator.train(train_input_fn, steps=50)
    assert estimator.get_variable_value("global_step") == 6
    estimator.train(train_input_fn, hooks=[v1.train.StopAtStepHook(last_step=8)], steps=50)
    assert estimator.get_variable_value("global_step") == 8


@REPLICAS
def test_logging_tensor_hook_logs_the_values_of_its_steps(replicas: int, tmp_path: Path) -> None:
    lines: list[str] = []

    def note(values: dict[str, Any]) -> str:
        lines.append(f"{values['loss']:.4f} {values['rate']:.4f}")
        return lines[-1]

    tensors = {"loss": "the_loss", "rate": "rate:0"}
    hook = v1.train.LoggingTensorHook(tensors, every_n_iter=2, formatter=note)
    build(tmp_path, replicas).train(train_input_fn, hooks=[hook], steps=5)
    losses, _ = trajectory(5)
    assert lines == [f"{losses[i]:.4f} {0.1 * 0.5 ** (i / 2):.4f}" for i in (0, 2, 4)]


def test_step_counter_and_summary_saver_hooks_write_events(tmp_path: Path) -> None:
    class Summary(v1.train.SessionRunHook):  # type: ignore[misc]
        """Makes the operation that the stock hook next to it fetches."""

        def begin(self) -> None:
            loss = v1.get_default_graph().get_tensor_by_name("the_loss:0")
            v1.get_default_graph().add_to_collection("mine", v1.summary.scalar("own", loss))

    class Saver(v1.train.SummarySaverHook):  # type: ignore[misc]
        def begin(self) -> None:
            self._summary_op = v1.get_collection("mine")[0]
            super().begin()

    counter = v1.train.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path / "counter"))
    saver = Saver(save_steps=3, output_dir=str(tmp_path / "own"), summary_op="later")
    build(tmp_path / "model").train(train_input_fn, hooks=[counter, Summary(), saver], steps=8)
    v1.summary.FileWriterCache.clear()
    assert [step for step, _ in programs.read_events(tmp_path / "counter")] == [3, 5, 7]
    losses, _ = trajectory(8)
    found = programs.read_events(tmp_path / "own")
    assert [step for step, _ in found] == [1, 4, 7]
    np.testing.assert_allclose([values["own"] for _, values in found], [losses[i] for i in (0, 3, 6)], rtol=1e-4)


def test_final_ops_hook_reads_the_last_values(tmp_path: Path) -> None:
    made: list[Any] = []

    def hooks(loss: Any) -> list[Any]:
        made.append(v1.train.FinalOpsHook({"step": v1.train.get_global_step(), "w": v1.trainable_variables()[0]}))
        return [v1.train.NanTensorHook(loss), v1.train.GlobalStepWaiterHook(0), *made[-1:]]

    estimator = build(tmp_path, hooks=hooks)
    estimator.train(train_input_fn, steps=3)
    assert made[0].final_ops_values["step"] == 3
    np.testing.assert_array_equal(made[0].final_ops_values["w"], estimator.get_variable_value("linear/w"))


@REPLICAS
def test_a_checkpoint_saver_hook_overrides_the_config(replicas: int, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:
            seen.append(int(global_step_value))

    hook = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=3)
    estimator = build(tmp_path, replicas, save_checkpoints_steps=1, keep_checkpoint_max=0)
    estimator.train(train_input_fn, hooks=[hook], steps=7, saving_listeners=[Listener()])
    v1.summary.FileWriterCache.clear()
    steps = programs.saved_steps(tmp_path)
    assert steps == seen == [0, 3, 6, 7]
    plain = build(tmp_path / "plain", replicas)
    plain.train(train_input_fn, steps=7)
    for name in plain.get_variable_names():
        np.testing.assert_allclose(
            estimator.get_variable_value(name), plain.get_variable_value(name), rtol=1e-5, atol=1e-6, err_msg=name
        )
    estimator.train(train_input_fn, max_steps=8)
    assert estimator.get_variable_value("global_step") == 8
