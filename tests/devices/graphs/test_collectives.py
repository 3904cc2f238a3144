"""Sums over replicas equal NumPy's on the arrays of all devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import v1
from tests.helpers.replicas import run_alone, run_replicas, trace
from tpudata.devices.graphs.collectives import lower_collectives, sum_replicas
from tpudata.estimator import ModelFnError, TPUEstimatorSpec

REPLICAS = 4
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
PARTS = X.reshape(REPLICAS, 2, 3)


def fetching(**outputs: Any) -> TPUEstimatorSpec:
    """A spec of a step that only computes these outputs."""
    return TPUEstimatorSpec("train", predictions=outputs, loss=tf.constant(0.0), train_op=tf.no_op())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "uint32"])
def test_small_numbers_add_up_exactly(dtype: str) -> None:
    array = np.arange(16).reshape(8, 2).astype(dtype)
    run = run_replicas(lambda x: fetching(total=sum_replicas(x, REPLICAS)), [[array]], REPLICAS)
    total = run.outputs["total"]
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, np.broadcast_to(array.reshape(4, 2, 2).sum(0), (4, 2, 2)))


def test_sums_of_64_bit_integers_and_doubles_lose_no_digits() -> None:
    array = np.array([2**62, 2**40 + 1, -(2**62), 2**53 + 1], np.int64)
    big = np.array([2**63, 1, 2**62, 5], np.uint64)
    double = np.array([1.0, 2.0**-40, -1.0, 2.0**-41])

    def model(integers: Any, unsigned: Any, doubles: Any) -> TPUEstimatorSpec:
        tensors = {"integers": integers, "unsigned": unsigned, "doubles": doubles}
        sums = {name: sum_replicas(tensor, REPLICAS) for name, tensor in tensors.items()}
        both = sum_replicas(tf.complex(doubles, -3 * doubles), REPLICAS)
        return fetching(**sums, real=tf.math.real(both), imaginary=tf.math.imag(both))

    found = run_replicas(model, [[array, big, double]], REPLICAS).outputs
    assert found["integers"].tolist() == [[int(array.sum())]] * REPLICAS
    assert found["unsigned"].tolist() == [[2**63 + 2**62 + 6]] * REPLICAS
    assert found["doubles"].tolist() == [[2.0**-40 + 2.0**-41]] * REPLICAS
    assert found["real"].tolist() == found["doubles"].tolist()
    assert found["imaginary"].tolist() == (-3 * found["doubles"]).tolist()


def test_groups_of_replicas_sum_separately() -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        total = v1.tpu.cross_replica_sum(x)
        pairs = v1.tpu.cross_replica_sum(x, [[0, 2], [1, 3]])
        doubles = v1.tpu.cross_replica_sum(tf.cast(x, tf.float64))
        (gradient,) = tf.gradients(tf.reduce_sum(x[0, 0] * pairs), [x])
        return fetching(total=total, pairs=pairs, doubles=doubles, gradient=gradient)

    found = run_replicas(model, [[X]], REPLICAS).outputs
    for replica in range(REPLICAS):
        pair = PARTS[replica % 2] + PARTS[replica % 2 + 2]
        np.testing.assert_allclose(found["total"][replica], PARTS.sum(0), rtol=1e-5)
        np.testing.assert_allclose(found["pairs"][replica], pair, rtol=1e-6)
        np.testing.assert_allclose(found["doubles"][replica], PARTS.astype(np.float64).sum(0), rtol=1e-12)
        gradient = np.full([2, 3], PARTS[replica % 2][0, 0] + PARTS[replica % 2 + 2][0, 0])
        gradient[0, 0] += pair.sum()
        np.testing.assert_allclose(found["gradient"][replica], gradient, rtol=1e-5)


def in_functions(x: Any) -> TPUEstimatorSpec:
    """Sums in a condition, a loop and a tf.function, and their gradients."""

    def add(number: Any, total: Any) -> tuple[Any, Any]:
        return number + 1, total + v1.tpu.cross_replica_sum(tf.reduce_sum(x) * tf.cast(number, tf.float32))

    called = tf.function(lambda y: v1.tpu.cross_replica_sum(y) ** 2, autograph=False)
    outputs = {
        "condition": tf.cond(tf.shape(x)[1] > 2, lambda: v1.tpu.cross_replica_sum(2.0 * x), lambda: x),
        "loop": tf.while_loop(lambda number, _: number < 3, add, [0, 0.0], maximum_iterations=3)[1],
        "call": called(x),
        "doubles": tf.cond(
            tf.shape(x)[1] > 2,
            lambda: v1.tpu.cross_replica_sum(tf.cast(x, tf.float64)),
            lambda: tf.zeros([2, 3], tf.float64),
        ),
    }
    gradients = {f"{name} gradient": tf.gradients(value, x)[0] for name, value in outputs.items()}
    return fetching(**outputs, **gradients)


def test_sums_inside_functions_and_their_gradients_cover_all_replicas() -> None:
    found = run_replicas(in_functions, [[X]], REPLICAS).outputs
    total = PARTS.sum(0)
    expected = {
        "condition": 2 * total,
        "loop": 3 * total.sum(),
        "call": total**2,
        "doubles": total,
        "condition gradient": np.full([2, 3], 2.0 * REPLICAS),
        "loop gradient": np.full([2, 3], 3.0 * REPLICAS),
        "call gradient": 2 * total * REPLICAS,
        "doubles gradient": np.full([2, 3], 1.0 * REPLICAS),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], np.broadcast_to(value, found[name].shape), rtol=1e-4, err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_a_sum_on_one_replica_equals_the_value() -> None:
    rows = X[:2]
    found = run_alone(in_functions, [[rows]]).outputs
    np.testing.assert_array_equal(found["condition"][0], 2 * rows)
    np.testing.assert_allclose(found["loop"][0], 3 * rows.sum(), rtol=1e-5)
    np.testing.assert_array_equal(found["call"][0], rows**2)
    np.testing.assert_array_equal(found["call gradient"][0], 2 * rows)


def test_does_not_copy_a_graph_without_sums() -> None:
    graph_def = trace(lambda x: fetching(x=x + 1), [tf.TensorSpec([2])], 2).graph.as_graph_def()
    assert lower_collectives(graph_def, 2) is graph_def


GROUPS = {
    "lacks a replica": ([[0, 1, 2]], tf.float32, r"expected the numbers 0 to 3"),
    "has one twice": ([[0, 1], [1, 2]], tf.float32, r"got \[\[0, 1\], \[1, 2\]\]"),
    "of doubles": ([[0, 1], [2, 3]], tf.float64, r"float64 is over all replicas.*Cast it to float32"),
}


@pytest.mark.parametrize("case", GROUPS)
def test_rejects_wrong_groups(case: str) -> None:
    groups, dtype, message = GROUPS[case]
    blueprint = trace(lambda x: fetching(x=v1.tpu.cross_replica_sum(x, groups)), [tf.TensorSpec([2], dtype)], 4)
    with pytest.raises(ModelFnError, match=message):
        lower_collectives(blueprint.graph.as_graph_def(), 4)


def test_rejects_computed_groups_and_sums_of_bools() -> None:
    specs = [tf.TensorSpec([1, 4], tf.int32)]
    blueprint = trace(lambda x: fetching(x=v1.tpu.cross_replica_sum(1.0, x)), specs, 4)
    with pytest.raises(ModelFnError, match=r"must be constant.*Pass lists"):
        lower_collectives(blueprint.graph.as_graph_def(), 4)
    with pytest.raises(ModelFnError, match="of bool"):
        trace(lambda x: fetching(x=sum_replicas(x > 1, 4)), specs, 4)
