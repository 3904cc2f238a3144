"""The end of a pass over the data, where TensorFlow may block for up to a minute."""

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.programs import finite_input_fn, make_estimator, train_input_fn
from tpudata.estimator.feeding.iteration import Iteration


def test_another_thread_deletes_the_iterator() -> None:
    iteration = Iteration(tf.data.Dataset.range(5).prefetch(1))
    deleted: list[threading.Thread] = []
    done = threading.Event()

    def note() -> None:
        deleted.append(threading.current_thread())
        done.set()

    weakref.finalize(iteration._references["iterator"], note)
    assert [int(item) for item in iter(iteration.next, None)] == [0, 1, 2, 3, 4]
    iteration.close()
    assert done.wait(60)
    assert deleted != [threading.main_thread()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("what", ["train", "evaluate", "predict"])
def test_every_call_frees_its_iterator(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def iterate(dataset: Any) -> Any:
        made.append(weakref.ref(iterator := iter(dataset)))
        return iterator

    monkeypatch.setattr("tpudata.estimator.feeding.iteration.iter", iterate, raising=False)
    estimator = make_estimator(tmp_path)
    if what == "train":
        estimator.train(train_input_fn, steps=8)
    elif what == "evaluate":
        estimator.evaluate(finite_input_fn(20))
    else:
        next(estimator.predict(finite_input_fn(20)))  # abandoned after a row
    for thread in threading.enumerate():
        if thread.name == "tpudata-iteration-end":
            thread.join(60)
    gc.collect()
    assert [reference() for reference in made] == [None]


def test_an_unclosed_iteration_is_deleted() -> None:
    iteration = Iteration(tf.data.Dataset.range(5))
    deleted = threading.Event()
    weakref.finalize(iteration._references["iterator"], deleted.set)
    del iteration
    gc.collect()
    assert deleted.wait(60)


PROGRAM = """
import time

import tensorflow as tf

from tpudata.estimator.feeding.iteration import Iteration


def numbers(name):
    def generator():
        try:
            while True:
                yield 1
        finally:
            time.sleep(0.3)
            print("end of", name.decode(), flush=True)

    return generator


def begun(name):
    signature = tf.TensorSpec([], tf.int32)
    iteration = Iteration(tf.data.Dataset.from_generator(numbers(name), output_signature=signature))
    print(int(iteration.next()), flush=True)
    return iteration


left, closed = begun(b"left"), begun(b"closed")
closed.close()
"""


@pytest.mark.matrix
def test_the_interpreter_waits_for_the_inputs_generators() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["1", "1", "end of closed", "end of left"]
