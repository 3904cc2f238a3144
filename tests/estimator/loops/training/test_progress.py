import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec


def skipping(every: int) -> Any:
    """A model_fn that skips each update whose number is a multiple of `every`, as a loss scale does after an overflow."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        tries = v1.get_variable("tries", [], tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        step = v1.train.get_global_step()
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        gradients = optimizer.compute_gradients(loss)
        with tf.control_dependencies([gradient for gradient, _ in gradients]):
            count = tries.assign_add(1)
        counts = tf.not_equal(count % every, 0)
        masked = [(tf.where(counts, gradient, tf.zeros_like(gradient)), variable) for gradient, variable in gradients]
        train_op = tf.group(optimizer.apply_gradients(masked), step.assign_add(tf.cast(counts, tf.int64)))
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


# The global step after each of the 11 steps: 1 2 2 3 4 4 5 6 6 7 8.
@pytest.mark.parametrize(
    ("iterations", "with_hooks", "replicas"),
    [(1, True, 1), (4, False, 1), (4, False, 2), pytest.param(1, False, 1, marks=pytest.mark.matrix)],
)
def test_continues_past_steps_that_do_not_count(
    iterations: int, with_hooks: bool, replicas: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = make_estimator(
        tmp_path,
        skipping(3),
        iterations=iterations,
        tpu_config={"num_replicas": replicas},
        save_checkpoints_steps=4,
        save_summary_steps=2,
        log_step_count_steps=None,
    )
    with caplog.at_level(logging.WARNING, "tpudata"):
        estimator.train(train_input_fn, hooks=[v1.train.SessionRunHook()] if with_hooks else None, max_steps=8)
    assert estimator.get_variable_value("global_step") == 8
    assert estimator.get_variable_value("tries") == 11
    assert programs.saved_steps(tmp_path) == [0, 4, 8]
    # As in the original, they come at the expected step: 3 at the step whose count stays at 2, and so on.
    assert [step for step, _ in programs.read_events(tmp_path)] == [1, 2, 4, 5, 6, 8]
    messages = [record.message for record in caplog.records if "left the global step" in record.message]
    assert messages[0].startswith(
        f"1 of the last {'1' if with_hooks else '4'} steps left the global step as it was (now"
    )


def test_warns_after_five_loops_without_counted_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_estimator(tmp_path, skipping(2), iterations=2).train(train_input_fn, max_steps=8)
    messages = [record.message for record in caplog.records if "left the global step" in record.message]
    assert [message.endswith("not reported.") for message in messages] == [False] * 4 + [True]


def test_a_hook_can_count_the_steps(tmp_path: Path) -> None:
    class Counts(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self._count = v1.train.get_global_step().assign_add(1)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_values
            run_context.session.run(self._count)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        train_op = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn).train(train_input_fn, hooks=[Counts()], max_steps=3)
    assert estimator.get_variable_value("global_step") == 3
