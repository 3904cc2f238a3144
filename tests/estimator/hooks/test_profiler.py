"""Profiles: RunConfig(profile_steps=...) and ProfilerHook."""

import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import make_estimator, train_input_fn, v1
from tpudata.estimator import ProfilerHook, TPUEstimatorSpec
from tpudata.estimator.base_estimator import get_engine


def profiles(folder: Path) -> list[Path]:
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize(("iterations", "steps", "ends"), [(100, (3, 5), [1, 2, 5, 8]), (2, (1, 2), [1, 2, 4, 6, 8])])
def test_profiles_the_given_steps(
    iterations: int, steps: tuple[int, int], ends: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = make_estimator(tmp_path, iterations=iterations, profile_steps=steps)
    seen: list[int] = []
    runtime = get_engine(estimator).training_runtime
    step_of = runtime.get_step

    def noted(mode: str, spec: Any) -> Any:
        step: Any = step_of(mode, spec)
        inner = step.run

        def counted(*arguments: Any, **options: Any) -> Any:
            results = inner(*arguments, **options)
            seen.append(int(results[0]))
            return results

        step.run = counted
        return step

    runtime.get_step = noted  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.INFO, logger="tpudata"):
        estimator.train(train_input_fn, max_steps=8)
    assert seen == ends
    assert len(profiles(tmp_path)) == 1
    assert f"Profiled steps {steps[0]} to {steps[1]}: tensorboard --logdir {tmp_path}" in caplog.text
    assert profiles(tmp_path)[0].stat().st_size > 1000


def test_profiles_steps_on_devices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator(tmp_path, profile_steps=(3, 5), tpu_config={"num_replicas": 2})
    with caplog.at_level(logging.INFO, logger="tpudata"):
        estimator.train(train_input_fn, max_steps=8)
    assert f"Profiled steps 3 to 5: tensorboard --logdir {tmp_path}" in caplog.text
    assert [path.stat().st_size > 1000 for path in profiles(tmp_path)] == [True]


def test_training_that_ends_early_writes_the_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator(tmp_path, profile_steps=(2, 100))
    with caplog.at_level(logging.INFO, logger="tpudata"):
        estimator.train(programs.finite_input_fn(40))
    assert "Profiled steps 2 to 5" in caplog.text
    # No profiler is left running; a later training is past those steps, and profiles nothing.
    make_estimator(tmp_path, profile_steps=(2, 4)).train(train_input_fn, max_steps=7)
    assert len(profiles(tmp_path)) == 1


def test_skips_profiling_while_another_profile_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tf.profiler.experimental.start(str(tmp_path / "own"))
    try:
        make_estimator(tmp_path / "model", profile_steps=(1, 2)).train(train_input_fn, max_steps=3)
        hook = ProfilerHook(save_steps=1, output_dir=str(tmp_path / "hook"))
        make_estimator(tmp_path / "other").train(train_input_fn, hooks=[hook], max_steps=3)
    finally:
        tf.profiler.experimental.stop()
    assert "Steps 1 to 2 are not profiled: another profile is running in this process." in caplog.text
    assert "ProfilerHook: step 2 is not profiled" in caplog.text
    assert profiles(tmp_path / "model") == profiles(tmp_path / "hook") == []
    assert len(profiles(tmp_path / "own")) == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_profiler_hook_traces_for_tensorboard(replicas: int, tmp_path: Path) -> None:
    hook = ProfilerHook(save_steps=3, output_dir=str(tmp_path / "trace"))
    estimator = make_estimator(tmp_path / "model", tpu_config={"num_replicas": replicas})
    estimator.train(train_input_fn, hooks=[hook], max_steps=5)
    assert len(profiles(tmp_path / "trace")) == 1  # step 3, as with the original
    assert not list((tmp_path / "trace").glob("timeline-*"))


def test_tensorflows_profiler_hook_writes_a_profile(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        hook = v1.train.ProfilerHook(save_steps=2, output_dir=str(tmp_path / "trace"))
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[hook])

    make_estimator(tmp_path / "model", model_fn).train(train_input_fn, max_steps=3)
    assert len(profiles(tmp_path / "trace")) == 1


def test_profiler_hook_requires_an_interval() -> None:
    with pytest.raises(ValueError, match="Either every_secs or every_steps"):
        ProfilerHook(output_dir="a")


@pytest.mark.parametrize(
    ("steps", "error"),
    [((0, 3), ValueError), ((3, 2), ValueError), (3, TypeError), ((1, 2.0), TypeError), ((1,), TypeError)],
)
def test_rejects_wrong_profile_steps(steps: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=r"^RunConfig\(profile_steps"):
        make_estimator(tmp_path, profile_steps=steps)
