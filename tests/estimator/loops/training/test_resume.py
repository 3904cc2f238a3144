"""A killed training resumes with the same batches, dropout, losses and variables."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.estimator import programs, resume_program
from tests.estimator.programs import X, make_estimator, train_input_fn
from tests.helpers.forked import Forked

CASES = pytest.mark.parametrize(
    ("replicas", "iterations", "hooks"),
    [
        (1, 5, True),
        # test_cluster kills a run with loops, and test_two_calls_of_train_equal_one continues with two replicas.
        pytest.param(2, 5, False, marks=pytest.mark.matrix),
        pytest.param(1, 5, False, marks=pytest.mark.matrix),
        pytest.param(2, 1, True, marks=pytest.mark.matrix),
    ],
)


def wait_for_checkpoint(folder: Path, step: int, process: Forked) -> None:
    """Wait until a checkpoint of that step or a later one is the newest."""
    for _ in range(6000):
        newest = programs.newest_step(folder)
        if newest is not None and newest >= step:
            return
        assert process.returncode is None, process.stderr
        time.sleep(0.01)
    raise AssertionError


def assert_as_undisturbed(folder: Path, finished: Any, data: Path, *arguments: Any) -> None:
    whole = resume_program.train(folder / "whole", data, *arguments)
    expected = {step: values["loss"] for step, values in programs.read_events(folder / "whole")}
    found = [(step, values["loss"]) for step, values in programs.read_events(folder / "killed")]
    assert found[-1][0] == resume_program.STEPS
    assert {step for step, _ in found} <= set(expected)
    assert found == [(step, expected[step]) for step, _ in found]
    ours, wanted = programs.variables(finished), programs.variables(whole)
    for name, value in wanted.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


@CASES
def test_a_run_killed_at_a_random_step_resumes_exactly(
    replicas: int, iterations: int, hooks: bool, digits_dataset: Path, tmp_path: Path
) -> None:
    folder, arguments = tmp_path / "killed", (digits_dataset, replicas, iterations, hooks)
    words = [str(item) for item in (folder, *arguments)]
    with Forked("-m", "tests.estimator.resume_program", *words) as process:
        wait_for_checkpoint(folder, random.choice([7, 14]), process)
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        assert process.returncode == -9, process.stderr
    newest = programs.newest_step(folder)
    assert newest is not None
    assert 7 <= newest < resume_program.STEPS
    assert_as_undisturbed(tmp_path, resume_program.train(folder, *arguments), *arguments)


def test_passes_the_resumed_step_to_input_fn(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []

    def input_fn(params: dict[str, Any], mode: str, start_step: int) -> Any:
        told.append((mode, start_step))
        return train_input_fn(params)

    class Object:
        def __call__(self, params: dict[str, Any], start_step: int = 1) -> Any:
            return input_fn(params, "object", start_step)

    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": 2, "per_host_input_for_training": False})
    estimator.train(input_fn, steps=3).train(input_fn, steps=2)
    estimator.check_model(input_fn, "train")
    estimator.evaluate(input_fn, steps=1)
    next(estimator.predict(input_fn))
    make_estimator(tmp_path).train(Object(), max_steps=7)
    assert told == [
        *[("train", 0)] * 2,
        *[("train", 3)] * 2,
        *[("train", 5)] * 2,
        ("eval", 0),
        ("infer", 0),
        ("object", 5),
    ]


def test_an_input_fn_without_start_step_starts_over(tmp_path: Path) -> None:
    seen: list[Any] = []

    def input_fn(params: dict[str, Any]) -> Any:
        seen.append(train_input_fn(params))
        return seen[-1]

    make_estimator(tmp_path).train(input_fn, steps=3).train(input_fn, steps=2)
    for dataset in seen:
        np.testing.assert_array_equal(next(iter(dataset))[0]["x"], X[:8])


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_two_calls_of_train_equal_one(replicas: int, digits_dataset: Path, tmp_path: Path) -> None:
    import tpudata

    def estimator(folder: str) -> Any:
        return resume_program.estimator(tmp_path / folder, replicas, 4)

    input_fn: Callable[..., Any] = tpudata.make_input_fn(str(digits_dataset), "train", training=True, seed=2)
    parts = estimator("parts").train(input_fn, steps=5).train(input_fn, steps=4)
    whole = estimator("whole").train(input_fn, steps=9)
    for name in whole.get_variable_names():
        np.testing.assert_array_equal(parts.get_variable_value(name), whole.get_variable_value(name), err_msg=name)
