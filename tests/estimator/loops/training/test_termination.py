"""SIGTERM while a model trains."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.estimator import programs
from tests.estimator.programs import finite_input_fn, make_estimator, train_input_fn, v1
from tests.helpers.forked import Forked
from tpudata.estimator import EvalSpec, TrainSpec, train_and_evaluate


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    found = signal.signal(signal.SIGTERM, before)
    assert found is signal.SIG_DFL  # training restores the handler in every test


class Terminated(v1.train.SessionRunHook):  # type: ignore[misc]
    """Sends SIGTERM to this process after a step."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.ended = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        if run_context.session.run("global_step:0") == self._step:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self, session: Any) -> None:
        del session
        self.ended = True


@pytest.mark.parametrize("replicas", [1, 2])
def test_sigterm_saves_and_exits_with_75(replicas: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = Terminated(3)
    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": replicas})
    with pytest.raises(SystemExit) as caught:
        estimator.train(train_input_fn, hooks=[hook], max_steps=10)
    assert caught.value.code == 75
    assert programs.newest_step(tmp_path) == 3
    assert hook.ended
    assert "SIGTERM: training stopped at step 3, which is saved. Run again to continue." in caplog.text
    make_estimator(tmp_path).train(train_input_fn, max_steps=10)
    assert programs.newest_step(tmp_path) == 10


def test_exit_on_sigterm_false_installs_no_handler(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

    make_estimator(tmp_path / "left", exit_on_sigterm=False).train(train_input_fn, hooks=[Looks()], max_steps=1)
    make_estimator(tmp_path / "taken").train(train_input_fn, hooks=[Looks()], max_steps=1)
    assert seen[0] is signal.SIG_DFL
    assert seen[1] is not signal.SIG_DFL
    with pytest.raises(TypeError, match=r"^RunConfig\(exit_on_sigterm"):
        make_estimator(tmp_path, exit_on_sigterm="no")


def test_a_checkpoint_saver_hook_saves_the_step_of_sigterm(tmp_path: Path) -> None:
    saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1000)
    with pytest.raises(SystemExit, match="75"):
        make_estimator(tmp_path).train(train_input_fn, hooks=[saver, Terminated(5)], max_steps=10)
    assert programs.newest_step(tmp_path) == 5


def test_sigterm_in_the_last_steps_hooks_exits_with_75(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="75"):
        make_estimator(tmp_path).train(train_input_fn, hooks=[Terminated(4)], max_steps=4)
    assert programs.newest_step(tmp_path) == 4


@pytest.mark.parametrize("what", ["input_fn", "evaluation"])
def test_sigterm_in_input_fn_or_evaluation_ends_at_once(what: str, tmp_path: Path) -> None:
    asked: list[str] = []

    def input_fn(params: dict[str, Any], mode: str) -> Any:
        asked.append(mode)
        if len(asked) == (1 if what == "input_fn" else 2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return train_input_fn(params)

    estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
    begin = time.monotonic()
    with pytest.raises(SystemExit, match="75"):
        train_and_evaluate(estimator, TrainSpec(input_fn, 12), EvalSpec(input_fn, steps=2))
    assert time.monotonic() - begin < 50
    assert programs.newest_step(tmp_path) == (None if what == "input_fn" else 4)


@pytest.mark.parametrize("ignores", [True, False])
def test_keeps_a_handler_of_the_program(ignores: bool, tmp_path: Path) -> None:
    received: list[int] = []
    handler: Any = signal.SIG_IGN if ignores else lambda number, _: received.append(number)
    signal.signal(signal.SIGTERM, handler)
    try:
        make_estimator(tmp_path).train(train_input_fn, hooks=[Terminated(3)], max_steps=6)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert programs.newest_step(tmp_path) == 6
    assert received == ([] if ignores else [signal.SIGTERM])


def test_training_in_another_thread_installs_no_handler(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            seen.append(signal.getsignal(signal.SIGTERM))

    estimator = make_estimator(tmp_path)
    thread = threading.Thread(target=lambda: estimator.train(train_input_fn, hooks=[Look()], max_steps=1))
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
    estimator.train(train_input_fn, hooks=[Look()], max_steps=2)
    assert seen[1] is not signal.SIG_DFL


def test_sigterm_does_not_hide_an_error(tmp_path: Path) -> None:
    class Broken(Terminated):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        make_estimator(tmp_path).train(finite_input_fn(8), hooks=[Broken(1)], max_steps=4)
    assert programs.newest_step(tmp_path) == 0


PROGRAM = """
import sys, time
from pathlib import Path
import tensorflow as tf
from tests.estimator.programs import make_estimator, train_input_fn

def wait(features, labels):
    def report():
        print("step", flush=True)
        time.sleep(0.1)
    with tf.control_dependencies([tf.numpy_function(report, [], [])]):
        return tf.nest.map_structure(tf.identity, (features, labels))

estimator = make_estimator(Path(sys.argv[1]), iterations=int(sys.argv[2]))
estimator.train(lambda params: train_input_fn(params).map(wait), max_steps=1000)
"""


def test_a_second_sigterm_ends_a_long_loop_at_once(tmp_path: Path) -> None:
    def terminate(process: Forked) -> None:
        process.wait_for("step\n" * 3)  # the loop is under way
        process.send_signal(signal.SIGTERM)

    with Forked("-c", PROGRAM, str(tmp_path), "5") as process:
        terminate(process)
        assert process.wait(60) == 75, process.stderr
        stderr = process.stderr
    saved = programs.newest_step(tmp_path)
    assert saved is not None
    assert saved % 5 == 1  # the loop that ran: the first ends at the first step, for the log
    assert f"SIGTERM: training stopped at step {saved}" in stderr
    assert "Traceback" not in stderr
    # A loop of 100 seconds: only the second signal ends it.
    with Forked("-c", PROGRAM, str(tmp_path), "1000") as process:
        terminate(process)
        time.sleep(0.5)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    assert programs.newest_step(tmp_path) == saved
