"""A TensorFlow function becomes a program for jax, or an error that names the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from tpudata.devices.spmd.lowering import lower
from tpudata.estimator import ModelFnError

ROW = tf.TensorSpec([2], tf.float32)
OUTSIDE: Any = tf.Variable([1.0, 2.0])


def test_a_program_returns_results_and_new_values() -> None:
    variables = {name: tf.Variable([1.0, 2.0]) for name in ("read", "written", "unused")}

    def function(x: Any) -> list[Any]:
        total = variables["written"].assign_add(x * variables["read"])
        return [tf.reduce_sum(total), x]

    program = lower(function, [ROW], variables)
    assert sorted(program.variables) == ["read", "written"]
    assert program.updates == ("written",)
    assert [item.shape for item in program.inputs] == [(2,)]
    assert [item.shape for item in program.results] == [(), (2,)]
    values = {"read": np.array([3, 4], np.float32), "written": np.array([10, 20], np.float32)}
    results, updates = jax.jit(lambda x: program([x], values))(np.array([1, 2], np.float32))
    assert results[0] == 41
    assert results[1].tolist() == [1, 2]
    assert {name: value.tolist() for name, value in updates.items()} == {"written": [13, 28]}
    assert variables["written"].numpy().tolist() == [1, 2]  # Lowering ran nothing.


def test_a_lone_result_can_be_the_new_value_of_a_variable() -> None:
    count = tf.Variable(4, dtype=tf.int64)

    def function(x: Any) -> list[Any]:
        count.assign_add(x)
        return []

    program = lower(function, [tf.TensorSpec([], tf.int64)], {"count": count})
    with jax.enable_x64(True):
        results, updates = jax.jit(lambda x: program([x], {"count": np.int64(2**40)}))(np.int64(3))
    assert results == []
    assert int(updates["count"]) == 2**40 + 3


OUTSIDE = tf.Variable([1.0, 2.0])
REJECTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an operation without a kernel": (
        lambda x: tf.strings.length(tf.strings.as_string(x)),
        r"^model_fn: the operation '\w+' does not run on several devices or a TPU \(got AsString, expected",
    ),
    "a shape that depends on values": (
        lambda x: tf.boolean_mask(x, x > 0),
        r"^model_fn: .* has the shape \(None,\).* Pad it to one size\.$",
    ),
    "an operation without a kernel in a function": (
        lambda x: tf.function(lambda y: tf.strings.length(tf.strings.as_string(y)))(x),
        r"^model_fn: the operation '\w+' does not run on several devices or a TPU \(got AsString, expected",
    ),
    "a shape in the middle that depends on values": (
        lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)),
        r"^model_fn: the shape of 'boolean_mask/Where' depends on values \(expected static shapes",
    ),
    "gradients of a shape that depends on values": (
        lambda x: tf.gradients(tf.boolean_mask(x, x > 0), x)[0],
        r"^model_fn: the shape of 'boolean_mask/Where' depends on values \(expected static shapes",
    ),
    "another variable": (lambda x: x + OUTSIDE, "made outside of it"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejects_operations_that_no_device_runs_in_one_line(case: str) -> None:
    function, message = REJECTED[case]
    with pytest.raises(ModelFnError, match=message) as caught:
        lower(lambda x: [function(x)], [ROW], {})
    assert "\n" not in str(caught.value)
