"""Compiled draws are those of TensorFlow's CPU kernels, at each step, and others on each replica."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.graph.draws.compiled import Compiled, in_session
from tpudata.estimator import ModelFnError

v1 = tf.compat.v1
LOGITS = np.log([[0.1, 0.2, 0.7], [1e-30, 0.5, 0.5]]).astype(np.float32)
BOUNDS = {"means": [0.0, 5.0], "stdevs": [1.0, 2.0], "minvals": [-1.0, 4.0], "maxvals": [2.0, 9.0]}
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

STATEFUL: dict[str, Callable[[], Any]] = {
    **{f"uniform {dtype.name}": functools.partial(v1.random_uniform, [7, 3], dtype=dtype) for dtype in FLOATS},
    **{f"normal {dtype.name}": functools.partial(v1.random_normal, [5, 7], dtype=dtype) for dtype in FLOATS},
    **{f"truncated {dtype.name}": functools.partial(v1.truncated_normal, [5, 99], dtype=dtype) for dtype in FLOATS[1:]},
    "range": lambda: v1.random_uniform([1001], -2, 3, seed=5),
    "scalar": lambda: v1.random_normal([]),
    "int32": lambda: v1.random_uniform([9], 0, 10, tf.int32),
    "int64": lambda: v1.random_uniform([9], -5, 10**12, tf.int64),
    "dropout": lambda: v1.nn.dropout(tf.ones([100, 20]), rate=0.5),
    "size of the batch": lambda: tf.nn.dropout(tf.ones(tf.stack([4, tf.shape(tf.ones([9]))[0]])), rate=0.3, seed=2),
    "vector": lambda: tf.random.shuffle(tf.range(50)),
    "rows": lambda: tf.random.shuffle(tf.reshape(tf.range(60.0), [20, 3])),
    "classes": lambda: tf.random.categorical(LOGITS, 5),
    "classes of float64": lambda: tf.random.categorical(LOGITS.astype(np.float64), 40, tf.int32),
    "impossible classes": lambda: tf.random.categorical([[0.0, -np.inf, 0.0, -np.inf]], 30),
}
STATELESS: dict[str, Callable[[], Any]] = {
    **{
        f"uniform {dtype.name}": functools.partial(tf.random.stateless_uniform, [9], (1, 2), dtype=dtype)
        for dtype in FLOATS
    },
    "normal": lambda: tf.random.stateless_normal([9, 5], (1, 2)),
    "truncated": lambda: tf.random.stateless_truncated_normal([99], tf.constant([3, 4])),
    "integers": lambda: tf.random.stateless_uniform([9], (1, 2), 0, 100, tf.int32),
    "classes": lambda: tf.random.stateless_categorical(LOGITS, 5, (1, 2)),
    "negative seeds": lambda: tf.random.stateless_normal([9], tf.constant([-1, -(2**30)])),
    "long seeds": lambda: tf.random.stateless_uniform([9], tf.constant([2**40 + 3, -(2**50)], tf.int64)),
    "classes of negative seeds": lambda: tf.random.stateless_categorical(LOGITS, 5, (-1, 2)),
    "seeds of rows": lambda: tf.map_fn(
        lambda seed: tf.random.stateless_uniform([3], tf.stack([1, seed])),
        tf.constant([-5, 7]),
        fn_output_signature=tf.float32,
    ),
    "generator": lambda: generator().normal([7]),
}


def generator() -> Any:
    return tf.random.Generator.from_seed(11)


def assert_close(found: Any, expected: Any, name: str) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-5, err_msg=name
    )


def together(draws: dict[str, Callable[[], Any]]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: draw() for name, draw in draws.items()}


@pytest.fixture(scope="module")
def stateful() -> Compiled:
    return Compiled(together(STATEFUL))


def test_first_replica_draws_what_a_session_draws(stateful: Compiled) -> None:
    for step, expected in enumerate(in_session(together(STATEFUL), steps=3)):
        found = stateful(step)
        for name in STATEFUL:
            assert_close(found[name], expected[name], f"{name} at step {step}")


def test_draws_depend_on_nothing_but_step_and_replica(stateful: Compiled) -> None:
    found = {place: stateful(*place) for place in ((0, 0), (1, 0), (0, 1), (1, 1))}
    again = stateful(1, 1)
    for name in STATEFUL:
        np.testing.assert_array_equal(again[name], found[1, 1][name], err_msg=name)
        assert len({values[name].tobytes() for values in found.values()}) == 4, name


def test_no_draw_is_left_to_the_compiler(stateful: Compiled) -> None:
    assert "stablehlo.rng " not in stateful.text


def test_shapes_stay_known(stateful: Compiled) -> None:
    assert all(shape.is_fully_defined() for shape in stateful.shapes)


def test_stateless_operations_draw_what_cpu_kernels_draw() -> None:
    (expected,) = in_session(together(STATELESS))
    compiled = Compiled(together(STATELESS), runs_updates=True)
    found, other = compiled(), compiled(5, 1)
    for name in STATELESS:
        assert_close(found[name], expected[name], name)
        # The program chose the seeds, which are the same on all replicas; a generator's state is an estimator's matter.
        assert np.array_equal(other[name], found[name]) == (name != "generator"), name


def test_operations_without_a_seed_draw_by_step_and_replica() -> None:
    def build() -> Any:
        return [tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, name=name) for name in "ab"]

    compiled = Compiled(build)
    drawn = [tuple(values) for place in ((0, 0), (1, 0), (0, 1)) for values in compiled(*place)]
    assert len(set(drawn)) == 6
    np.testing.assert_array_equal(Compiled(build)(1), compiled(1))


def test_bounded_normal_values_have_their_distribution() -> None:
    shape = [2, 20000]
    found = Compiled(lambda: tf.raw_ops.ParameterizedTruncatedNormal(shape=shape, **BOUNDS))()
    expected = tf.raw_ops.ParameterizedTruncatedNormal(shape=shape, **BOUNDS, seed=1).numpy()
    for statistic in (np.mean, np.std, np.median):
        np.testing.assert_allclose(statistic(found, axis=1), statistic(expected, axis=1), atol=0.05)
    assert (found.min(1) >= BOUNDS["minvals"]).all()
    assert (found.max(1) <= BOUNDS["maxvals"]).all()


@pytest.mark.parametrize(
    ("kind", "draw"),
    {
        "RandomGamma": lambda: tf.random.gamma([2], 1.5),
        "RandomPoissonV2": lambda: tf.random.poisson([2], 1.5),
        "StatefulRandomBinomial": lambda: generator().binomial([2], [5.0, 5.0], [0.5, 0.5]),
        "StatelessRandomPoisson": lambda: tf.random.stateless_poisson([2], (1, 2), 1.5),
        "LogUniformCandidateSampler": lambda: tf.random.log_uniform_candidate_sampler([[1]], 1, 2, True, 9)[0],
    }.items(),
)
def test_rejects_draws_that_xla_has_no_kernel_for(kind: str, draw: Callable[[], Any]) -> None:
    with pytest.raises(ModelFnError, match=kind):
        Compiled(draw)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_layers_draw_apart_on_replicas(library: str) -> None:
    layers = pytest.importorskip(library).layers

    def build() -> Any:
        drop = layers.Dropout(0.5, seed=7)
        first = drop(tf.ones([50]), training=True)
        inside = tf.cond(tf.reduce_sum(first) > -1, lambda: drop(tf.ones([50]), training=True), lambda: tf.zeros([50]))
        return first, inside

    compiled = Compiled(build, runs_updates=True)
    drawn = [compiled(0, replica) for replica in range(3)]
    assert len({values.tobytes() for pair in drawn for values in pair}) == 6
    np.testing.assert_array_equal(compiled(0, 2), drawn[2])
    np.testing.assert_array_equal(drawn[0][0], in_session(lambda: build()[0])[0])
