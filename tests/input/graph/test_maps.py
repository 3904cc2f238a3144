"""Maps in the thread that asks: the elements of `Dataset.map`, and no other thread."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.input.graph.maps import map_in_thread, only_arranges

PAIRS = tf.data.Dataset.from_tensor_slices(({"a": tf.range(7), "b": tf.zeros([7, 2])}, tf.range(7, 14)))


def arranged(features: dict[str, tf.Tensor], labels: tf.Tensor) -> Any:
    return {"all": (features["a"], tf.identity(labels)), "b": tf.ensure_shape(features["b"], [2])}


def summed(features: dict[str, tf.Tensor], labels: tf.Tensor) -> Any:
    return features["a"] + labels, features["b"]


@pytest.mark.parametrize("function", [arranged, summed])
def test_elements_are_those_of_dataset_map(function: Any) -> None:
    found, want = map_in_thread(PAIRS, function), PAIRS.map(function)
    assert found.element_spec == want.element_spec
    assert found.cardinality() == want.cardinality() == 7
    for ours, theirs in zip(found.as_numpy_iterator(), want.as_numpy_iterator(), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)


def test_single_elements_and_what_a_function_captures() -> None:
    offset = tf.constant(10, tf.int64)
    dataset = map_in_thread(tf.data.Dataset.range(3), lambda number: number + offset)
    assert list(dataset.as_numpy_iterator()) == [10, 11, 12]
    assert list(dataset.batch(2).prefetch(1).repeat(2).as_numpy_iterator())[-1].tolist() == [12]


def test_python_runs_in_one_thread() -> None:
    threads = []

    def noted(number: int) -> int:
        threads.append(threading.get_ident())
        return number

    def function(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(noted, [number], tf.int64), [])

    dataset = map_in_thread(map_in_thread(tf.data.Dataset.range(50), function), function).prefetch(2)
    assert list(dataset.as_numpy_iterator()) == list(range(50))
    # The one that prefetches; of TensorFlow's pool, which `Dataset.map` passes elements to, it would be several.
    assert len(threads) == 100
    assert len(set(threads)) == 1


def test_errors_are_those_of_dataset_map() -> None:
    def failing(number: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(1.0 / tf.cast(number - 2, tf.float32), "not a number")

    iterator = iter(map_in_thread(tf.data.Dataset.range(3), failing))
    next(iterator), next(iterator)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        next(iterator)


def test_in_a_graph_of_tensorflow_1() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = map_in_thread(tf.data.Dataset.range(3), lambda number: number * 2)
        element = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        assert [session.run(element) for _ in range(3)] == [0, 2, 4]


def test_what_it_is_made_of_lives_as_long() -> None:
    first = tf.data.Dataset.range(3).map(lambda number: number + 1)
    ended = weakref.ref(first)
    last = map_in_thread(first, lambda number: number * 2).prefetch(1)
    del first
    gc.collect()
    assert ended() is not None
    assert list(last.as_numpy_iterator()) == [2, 4, 6]
    del last
    gc.collect()
    assert ended() is None


def test_what_only_arranges() -> None:
    assert only_arranges(arranged, PAIRS.element_spec)
    assert only_arranges(lambda number: {"x": number}, tf.TensorSpec((), tf.int64))
    assert not only_arranges(summed, PAIRS.element_spec)
    assert not only_arranges(lambda number: tf.cast(number, tf.float32), tf.TensorSpec((3,), tf.int64))
