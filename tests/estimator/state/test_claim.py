"""Two trainings in one model_dir: only one runs."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.estimator import programs
from tests.estimator.programs import finite_input_fn, make_estimator, train_input_fn, v1
from tests.helpers.forked import Forked
from tpudata.errors import OutputError
from tpudata.estimator import EvalSpec, TrainSpec, train_and_evaluate
from tpudata.estimator.state.claim import claim_model_dir
from tpudata.storage.claims.claim import PROCESS, Claim, claim_path

PROGRAM = """
import sys, time
from pathlib import Path
from tests.estimator.programs import make_estimator, train_input_fn, v1

class Wait(v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        print("step", flush=True)
        time.sleep(0.1)

make_estimator(Path(sys.argv[1])).train(train_input_fn, hooks=[Wait()], max_steps=1000)
"""


def test_rejects_a_second_training_and_continues_after_a_killed_one(tmp_path: Path) -> None:
    with Forked("-c", PROGRAM, str(tmp_path)) as process:
        process.wait_for("step\n")
        begin = time.monotonic()
        with pytest.raises(OutputError) as caught:
            make_estimator(tmp_path).train(train_input_fn, max_steps=2)
        assert time.monotonic() - begin < 30
        assert str(caught.value).startswith(f"{tmp_path}: another run is at work there (host ")
        assert f"process {process.pid}, since 20" in str(caught.value)
        assert "\n" not in str(caught.value)
        # Evaluation and prediction write no file that training reads.
        assert make_estimator(tmp_path).evaluate(finite_input_fn(8))["global_step"] == 0
        process.kill()
    assert Path(claim_path(str(tmp_path))).exists()
    make_estimator(tmp_path).train(train_input_fn, max_steps=2)
    assert programs.newest_step(tmp_path) == 2
    assert not Path(claim_path(str(tmp_path))).exists()


def test_sigterm_and_errors_release_the_claim(tmp_path: Path) -> None:
    class Broken(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            assert Path(claim_path(str(tmp_path))).exists()
            raise KeyError("own")

    with pytest.raises(KeyError):
        make_estimator(tmp_path).train(train_input_fn, hooks=[Broken()], max_steps=2)
    assert not Path(claim_path(str(tmp_path))).exists()

    class Terminated(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit, match="75"):
            make_estimator(tmp_path).train(train_input_fn, hooks=[Terminated()], max_steps=5)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not Path(claim_path(str(tmp_path))).exists()


def test_estimators_of_one_process_can_train_in_turn(tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input_fn, max_steps=2)
    other = make_estimator(tmp_path, save_checkpoints_steps=2)
    train_and_evaluate(other, TrainSpec(train_input_fn, max_steps=6), EvalSpec(finite_input_fn(8), throttle_secs=0))
    other.train(train_input_fn, max_steps=8)
    assert programs.newest_step(tmp_path) == 8


def test_rejects_a_second_training_in_another_thread(tmp_path: Path) -> None:
    errors: list[Exception] = []

    class Trains(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values

            def train() -> None:
                try:
                    make_estimator(tmp_path).train(train_input_fn, max_steps=9)
                except OutputError as error:
                    errors.append(error)

            thread = threading.Thread(target=train)
            thread.start()
            thread.join()

    make_estimator(tmp_path).train(train_input_fn, hooks=[Trains()], max_steps=1)
    assert [f"process {os.getpid()}" in str(error) for error in errors] == [True]


def test_takes_over_a_stale_claim_of_another_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = dataclasses.replace(Claim.new(PROCESS), host="elsewhere", machine="other")
    tmp_path.mkdir(exist_ok=True)
    Path(claim_path(str(tmp_path))).write_bytes(other.to_bytes())
    with claim_model_dir(str(tmp_path), shares_with_trainings=True, dead_after=0.3):
        make_estimator(tmp_path).train(train_input_fn, max_steps=1)
    assert "host elsewhere" in caplog.text
    assert programs.newest_step(tmp_path) == 1


def test_warns_of_a_folder_that_cannot_be_claimed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Only TensorFlow knows ram://.
    folder = f"ram://{tmp_path.name}"
    make_estimator(folder).train(train_input_fn, max_steps=1)  # type: ignore[arg-type]
    (message,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith(
        f"{folder}: this training holds no claim on its model_dir, so a second one there would not"
    )
    assert "\n" not in message
    caplog.clear()
    make_estimator(tmp_path).train(train_input_fn, max_steps=1)
    assert not caplog.records or all("claim" not in record.message for record in caplog.records)


def test_a_training_that_lost_its_claim_writes_nothing_more(tmp_path: Path) -> None:
    class TakeOver(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            other = dataclasses.replace(Claim.new(PROCESS), host="another")
            Path(claim_path(str(tmp_path))).write_bytes(other.to_bytes())

    with pytest.raises(OutputError, match=r"another run \(host another, .*has taken it over"):
        make_estimator(tmp_path).train(train_input_fn, hooks=[TakeOver()], max_steps=3)
    assert programs.saved_steps(tmp_path) == [0]
