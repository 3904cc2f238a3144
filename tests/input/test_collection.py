"""Iterators that are dropped while they run: in cycles, in threads, and as the program ends."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import Written
from tests.input.text.test_sequence import write_tokens
from tpudata import make_input_fn
from tpudata.input.collection import _keep_the_last, keep_iterators
from tpudata.input.source import Source

# A hang is found after so many seconds; a busy machine may hold a process up for a while.
_PATIENCE = 120


def cycle(value: Any) -> None:
    """Leaves a value to the collector."""
    box = [value]
    box.append(box)


class Owner:
    """Is part of a cycle together with what it owns."""

    def __init__(self, owned: Any) -> None:
        self.owned = owned
        owned.owner = self


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing is collected but where a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("generation", [0, 2])
@pytest.mark.parametrize("drop", [cycle, Owner])
@pytest.mark.usefixtures("no_collector")
def test_the_collector_may_run_where_a_dropped_iterator_is_fed(drop: Any, generation: int, raw_digits: Written) -> None:
    dropped, collected, calls = threading.Event(), threading.Event(), itertools.count()

    def collect(image: Any) -> Any:
        # Slow behind the first batches: were all that is made in advance there already, it would not be called again.
        if dropped.wait(0 if next(calls) < 16 else 0.5) and not collected.is_set():
            gc.collect(generation)
            collected.set()
        return image

    def transform(features: Any, labels: Any) -> Any:
        image = tf.ensure_shape(tf.numpy_function(collect, [features["image"]], tf.uint8), (8, 8, 1))
        return {"image": image}, labels

    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, transform=transform)
    running = iter(input_fn({"batch_size": 4}))
    next(running)
    # The iterator becomes old, and what alone will hold it is young.
    gc.collect()
    drop(running)
    reference = weakref.ref(running)
    del running
    dropped.set()
    assert collected.wait(_PATIENCE), "the collector waits for the function that it runs in"
    # What the collector left there is collected here, if it ever returned: it starts no second time before.
    other = Owner(threading.Event())
    later = weakref.ref(other)
    del other
    deadline = time.monotonic() + _PATIENCE
    while (reference() is not None or later() is not None) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert (reference(), later()) == (None, None)


def test_many_are_dropped_while_others_run(raw_digits: Written) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for turn in range(8):
                buffer = (None, 20)[(number + turn) % 2]
                input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, shuffle_buffer=buffer)
                running = iter(input_fn({"batch_size": 16}))
                for _ in range(turn % 3 + 1):
                    next(running)
                cycle(running)
        except BaseException as error:
            failed.append(error)

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # So that many collections take little time.
    gc.set_threshold(50, 2, 2)
    try:
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE)
            assert not thread.is_alive()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert not failed


def test_a_program_ends_while_iterators_run(raw_digits: Written) -> None:
    program = f"""
import gc, tpudata
kept = []
for number in range(8):
    input_fn = tpudata.make_input_fn({raw_digits.path!r}, "train", training=True, seed=1, shuffle_buffer=(None, 20)[number % 2])
    kept.append(iter(input_fn({{"batch_size": 16}})))
    next(kept[-1])
kept.append(kept)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * _PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"end\n"), done.stderr.decode()


@pytest.mark.parametrize("is_caught", [False, True])
def test_a_program_ends_that_an_error_ended(is_caught: bool, tmp_path: Path) -> None:
    # The error's traceback holds the iterator, in the calls that it came out of; the next batches, which fail too, are under way.
    write_tokens(tmp_path / "d", [np.arange(1, 200 + number % 50, dtype=np.int32) for number in range(30_000)])
    program = f"""
import tensorflow as tf, tpudata
input_fn = tpudata.make_input_fn({str(tmp_path / "d")!r}, "train", training=True, sequence_length=32)
try:
    next(iter(input_fn({{"batch_size": 16}})))
except tf.errors.OpError as error:
    kept = error
    print("end", flush=True)
    if not {is_caught}:
        raise
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * _PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (int(not is_caught), b"end\n"), done.stderr.decode()


def test_nothing_is_fed_when_the_interpreter_ends(raw_digits: Written) -> None:
    program = f"""
import atexit, time
def after():  # Called last, as it is registered first.
    time.sleep(0.2)
    assert calls.count("begin") == calls.count("end"), calls
    before = len(calls)
    time.sleep(0.5)
    assert len(calls) == before
    print("still")
atexit.register(after)
import tensorflow as tf, tpudata
calls = []
def slow(image):
    calls.append("begin")
    time.sleep(0.3)
    calls.append("end")
    return image
def transform(features, labels):
    return {{"image": tf.ensure_shape(tf.numpy_function(slow, [features["image"]], tf.uint8), (8, 8, 1))}}, labels
input_fn = tpudata.make_input_fn({raw_digits.path!r}, "train", training=True, seed=1, transform=transform)
running = iter(input_fn({{"batch_size": 2}}))
next(running)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * _PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"end\nstill\n"), done.stderr.decode()


def test_the_collector_runs_while_tensors_are_made() -> None:
    program = """
import gc
import tensorflow as tf
from tpudata.input.collection import keep_iterators
keep_iterators()
gc.set_threshold(1, 1, 1)
for number in range(100):
    tf.stack([tf.constant([number, float(number)]), tf.constant([1.0, 2.0])])
# Other packages' callbacks fail in a collection at the interpreter's end.
gc.disable()
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * _PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"end\n"), done.stderr.decode()
    assert b"Exception ignored" not in done.stderr


def test_tuples_may_be_filled_while_another_thread_collects() -> None:
    # In a process of its own, where there are no objects of other tests to collect.
    program = """
import gc, threading, time
import tensorflow as tf
from tpudata.input.collection import keep_iterators
keep_iterators()
iterator = iter(tf.data.Dataset.range(3))
ended = threading.Event()

def collect():
    while not ended.is_set():
        gc.collect()

def slowly():
    for number in range(10):
        time.sleep(0.001)
        yield number

thread = threading.Thread(target=collect)
thread.start()
try:
    # Where anybody else holds it meanwhile, Python ends the call with a SystemError.
    print([tuple(slowly()) == tuple(range(10)) for _ in range(2)])
finally:
    ended.set()
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=2 * _PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"[True, True]\n"), done.stderr.decode()


@pytest.mark.usefixtures("no_collector")
def test_a_dataset_may_go_while_a_thread_reads_for_it(raw_digits: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpudata.input.source._LOCAL_READERS", 2)
    read = Source.read

    def collecting(source: Source, first: int, last: int) -> Any:
        gc.collect()
        return read(source, first, last)

    monkeypatch.setattr(Source, "read", collecting)
    found: list[int] = []

    def run() -> None:
        with tf.Graph().as_default():
            # The graph goes on without it: the thread that reads collects it, while another one waits for what is read.
            dataset = make_input_fn(raw_digits.path, "train", training=True, seed=1)({"batch_size": 16})
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            labels, start = iterator.get_next()[1], iterator.initializer
            cycle((dataset, iterator))
            del dataset, iterator
            with tf.compat.v1.Session() as session:
                session.run(start)
                found.extend(len(session.run(labels)) for _ in range(3))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    assert found == [16, 16, 16]


def test_only_what_nobody_else_holds_is_kept() -> None:
    held, cyclic = Owner(threading.Event()), Owner(threading.Event())
    kept: list[Any] = [held, Owner(threading.Event()).owned, object(), cyclic.owned]
    alone = type(kept[2])
    del cyclic
    _keep_the_last(kept)
    assert [type(item) for item in kept] == [alone]


def test_one_callback_is_enough() -> None:
    keep_iterators()
    before = list(gc.callbacks)
    keep_iterators()
    assert gc.callbacks == before


def test_an_iterator_in_use_goes_on(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    expected = [batch[1] for batch in input_fn({"batch_size": 16}).take(4).as_numpy_iterator()]
    running = input_fn({"batch_size": 16}).as_numpy_iterator()
    for labels in expected:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        np.testing.assert_array_equal(next(running)[1], labels)
