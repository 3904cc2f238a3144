"""Evaluation of the checkpoints of another process."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.estimator.programs import make_estimator, make_model_fn, train_input_fn, v1
from tpudata.estimator import CheckpointError, EvalSpec, TrainSpec, train_and_evaluate
from tpudata.estimator.new_checkpoints import evaluate_new_checkpoints


def save(folder: Path, *steps: int) -> None:
    """Write what evaluate_new_checkpoints reads of checkpoints: the folder's list, and their index files."""
    paths = [f"model.ckpt-{step}" for step in steps]
    for path in paths:
        (folder / f"{path}.index").touch()
    newest = f'model_checkpoint_path: "{paths[-1]}"\n'
    (folder / "checkpoint").write_text(newest + "".join(f'all_model_checkpoint_paths: "{path}"\n' for path in paths))


def step_of(path: str) -> int:
    return int(path.rpartition("-")[2])


def follow(folder: Path, last: int, *then: Callable[[], Any], **options: Any) -> list[int]:
    """Return the steps of the evaluated checkpoints; after each evaluation, the next of `then` happens."""
    steps: list[int] = []
    events = iter(then)

    def evaluate(path: str) -> bool:
        steps.append(step_of(path))
        next(events, lambda: None)()
        return steps[-1] >= last

    options = {"throttle_secs": 0.01, **options}
    assert evaluate_new_checkpoints(str(folder), evaluate, **options) == (steps[-1:] >= [last])
    return steps


def test_evaluates_all_checkpoints_oldest_first(tmp_path: Path) -> None:
    save(tmp_path, 2, 4)
    assert follow(tmp_path, 6, lambda: None, lambda: save(tmp_path, 4, 5, 6)) == [2, 4, 5, 6]


def test_evaluates_the_newest_checkpoint_alone(tmp_path: Path) -> None:
    save(tmp_path, 2, 4)
    assert follow(tmp_path, 8, lambda: save(tmp_path, 4, 6, 8), newest_only=True) == [4, 8]


def test_evaluates_an_older_checkpoint_again_if_training_begins_again(tmp_path: Path) -> None:
    save(tmp_path, 4)
    save_again = (lambda: save(tmp_path, 6), lambda: save(tmp_path, 4), lambda: save(tmp_path, 8))
    assert follow(tmp_path, 8, *save_again, newest_only=True) == [4, 6, 4, 8]


def test_ends_without_a_new_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 2)
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert follow(tmp_path, 4, timeout=0.05) == [2]
    assert caplog.messages == [f"Waiting up to 0.05 seconds for a checkpoint in {tmp_path}."]


@pytest.mark.parametrize("newest_only", [False, True])
def test_skips_a_checkpoint_that_is_removed_before_it_is_read(newest_only: bool, tmp_path: Path) -> None:
    save(tmp_path, 2)
    steps: list[int] = []

    def evaluate(path: str) -> bool:
        steps.append(step_of(path))
        if steps == [2]:
            save(tmp_path, 4)
            Path(f"{path}.index").unlink()
            raise CheckpointError(f"{path} cannot be read")
        return True

    assert evaluate_new_checkpoints(str(tmp_path), evaluate, newest_only=newest_only)
    assert steps == [2, 4]


@pytest.mark.parametrize("newest_only", [False, True])
def test_reports_a_damaged_list_of_checkpoints(newest_only: bool, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("model.ckpt-2")
    with pytest.raises(CheckpointError, match="checkpoint is damaged"):
        evaluate_new_checkpoints(str(tmp_path), lambda _: True, newest_only=newest_only, timeout=0.05)


def test_the_evaluator_of_a_cluster_rejects_checkpoints_of_another_model(tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input_fn, max_steps=2)

    def other_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        v1.get_variable("other", [2])
        return make_model_fn()(features, labels, mode, params)

    cluster = {"chief": ["localhost:1"], "evaluator": ["localhost:2"]}
    tf_config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    evaluator = make_estimator(tmp_path, other_model_fn, tf_config=tf_config)
    with pytest.raises(CheckpointError, match="lacks the variable 'other'"):
        train_and_evaluate(evaluator, TrainSpec(train_input_fn, 2), EvalSpec(train_input_fn, 1, start_delay_secs=0))
