"""Compiled draws: their distributions, and the seeds, steps and replicas that they depend on."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.devices.graphs.draws.compiled import Compiled
from tpudata.estimator import ModelFnError

v1 = tf.compat.v1
ROWS = 8000
LOGITS = np.log([[0.1, 0.2, 0.7], [1e-30, 0.25, 0.75]]).astype(np.float32)
BOUNDS = {"means": [0.0, 5.0], "stdevs": [1.0, 2.0], "minvals": [-1.0, 4.0], "maxvals": [2.0, 9.0]}
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
# Deviation of the standard normal distribution cut at 2, from its density and distribution function there.
CUT_DEVIATION = 0.8796

# Operations; those that draw numbers have their lower bound, upper bound, mean and deviation.
STATEFUL: dict[str, tuple[Callable[[], Any], tuple[float, float, float, float] | None]] = {
    **{
        f"uniform {dtype.name}": (functools.partial(v1.random_uniform, [ROWS], dtype=dtype), (0, 1, 0.5, 12**-0.5))
        for dtype in FLOATS
    },
    **{
        f"normal {dtype.name}": (functools.partial(v1.random_normal, [ROWS], dtype=dtype), (-7, 7, 0, 1))
        for dtype in FLOATS
    },
    **{
        f"truncated {dtype.name}": (
            functools.partial(v1.truncated_normal, [ROWS], dtype=dtype),
            (-2, 2 + 1e-6, 0, CUT_DEVIATION),
        )
        for dtype in FLOATS
    },
    "range": (lambda: v1.random_uniform([ROWS], -2, 3, seed=5), (-2, 3, 0.5, 5 * 12**-0.5)),
    "int32": (lambda: v1.random_uniform([ROWS], 0, 10, tf.int32), (0, 10, 4.5, (99 / 12) ** 0.5)),
    "int64": (lambda: v1.random_uniform([ROWS], -(10**12), 10**12, tf.int64), (-1e12, 1e12, 0, 2e12 * 12**-0.5)),
    "dropout": (lambda: v1.nn.dropout(tf.ones([ROWS]), rate=0.5), (0, 3, 1, 1)),
    "scalar": (lambda: v1.random_normal([]), None),
    "size of the batch": (
        lambda: tf.nn.dropout(tf.ones(tf.stack([400, tf.shape(tf.ones([50]))[0]])), rate=0.75, seed=2),
        (0, 5, 1, 3**0.5),
    ),
    "vector": (lambda: tf.random.shuffle(tf.range(ROWS)), (0, ROWS, (ROWS - 1) / 2, ROWS * 12**-0.5)),
    "rows": (lambda: tf.random.shuffle(tf.reshape(tf.range(60.0), [20, 3])), None),
    "classes": (lambda: tf.random.categorical(LOGITS, ROWS), None),
    "classes of float64": (lambda: tf.random.categorical(LOGITS.astype(np.float64), ROWS, tf.int32), None),
}
STATELESS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: tf.random.stateless_uniform([9], (1, 2)),
    "normal": lambda: tf.random.stateless_normal([9, 5], (1, 2)),
    "truncated": lambda: tf.random.stateless_truncated_normal([99], tf.constant([3, 4])),
    "bounded": lambda: tf.random.stateless_parameterized_truncated_normal([9], (1, 2), tf.zeros([9])),
    "integers": lambda: tf.random.stateless_uniform([9], (1, 2), 0, 100, tf.int32),
    "classes": lambda: tf.random.stateless_categorical(LOGITS, 50, (1, 2)),
}


def generator() -> Any:
    return tf.random.Generator.from_seed(11)


@pytest.fixture(scope="module")
def stateful() -> Compiled:
    return Compiled(lambda: {name: draw() for name, (draw, _) in STATEFUL.items()})


@pytest.mark.parametrize("place", [(0, 0), (4, 3)])
def test_draws_have_their_distribution(stateful: Compiled, place: tuple[int, int]) -> None:
    found = stateful(*place)
    for name, (_, numbers) in STATEFUL.items():
        if numbers is None:
            continue
        least, bound, mean, deviation = numbers
        values = found[name].astype(np.float64).ravel()
        assert least <= values.min(), name
        assert values.max() < bound, name
        # Five deviations of the mean of so many values; the last digit of bfloat16 is 2**-9.
        np.testing.assert_allclose(values.mean(), mean, atol=deviation * (5 * ROWS**-0.5 + 2**-9), err_msg=name)
        np.testing.assert_allclose(values.std(), deviation, rtol=0.04, err_msg=name)


def test_draws_classes_with_the_probabilities_of_their_logits(stateful: Compiled) -> None:
    for name in ("classes", "classes of float64"):
        portions = [np.bincount(row, minlength=3) / ROWS for row in stateful()[name]]
        np.testing.assert_allclose(portions, np.exp(LOGITS), atol=0.02, err_msg=name)


def test_shuffled_rows_stay_whole(stateful: Compiled) -> None:
    found = stateful()
    rows = np.arange(60.0).reshape(20, 3)
    assert not np.array_equal(found["rows"], rows)
    np.testing.assert_array_equal(found["rows"][found["rows"][:, 0].argsort()], rows)
    np.testing.assert_array_equal(np.sort(found["vector"]), np.arange(ROWS))
    assert abs(np.corrcoef(found["vector"], np.arange(ROWS))[0, 1]) < 5 * ROWS**-0.5


def test_draws_depend_only_on_step_and_replica(stateful: Compiled) -> None:
    found = {place: stateful(*place) for place in ((0, 0), (1, 0), (0, 1), (1, 1))}
    again = stateful(1, 1)
    for name in STATEFUL:
        np.testing.assert_array_equal(again[name], found[1, 1][name], err_msg=name)
        assert len({values[name].tobytes() for values in found.values()}) == 4, name


def test_draws_of_steps_and_replicas_are_independent(stateful: Compiled) -> None:
    rows = np.stack([stateful(step, replica)["normal float64"] for step in range(3) for replica in range(3)])
    np.testing.assert_allclose(np.corrcoef(rows), np.eye(9), atol=5 * ROWS**-0.5)


def test_the_compiler_gets_no_draws(stateful: Compiled) -> None:
    assert "stablehlo.rng " not in stateful.text


def test_replaced_draws_keep_their_static_shapes(stateful: Compiled) -> None:
    assert all(shape.is_fully_defined() for shape in stateful.shapes)


def test_stateless_operations_depend_only_on_their_seeds() -> None:
    compiled = Compiled(lambda: {name: draw() for name, draw in STATELESS.items()})
    found, other = compiled(), compiled(5, 1)
    for name in STATELESS:
        assert len(np.unique(found[name])) > 1, name
        np.testing.assert_array_equal(other[name], found[name], err_msg=name)


def test_generators_draw_different_numbers_on_replicas() -> None:
    compiled = Compiled(lambda: [generator().normal([7]), generator().uniform([7])], runs_updates=True)
    drawn = [values.tobytes() for replica in range(3) for values in compiled(0, replica)]
    assert len(set(drawn)) == 6
    assert [values.tobytes() for values in compiled(0, 2)] == drawn[4:]


def test_operations_without_a_seed_draw_by_step_and_replica() -> None:
    def build() -> Any:
        return [tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, name=name) for name in "ab"]

    compiled = Compiled(build)
    drawn = [tuple(values) for place in ((0, 0), (1, 0), (0, 1)) for values in compiled(*place)]
    assert len(set(drawn)) == 6
    np.testing.assert_array_equal(Compiled(build)(1), compiled(1))


@pytest.mark.parametrize(
    ("kind", "draw"),
    {
        "ParameterizedTruncatedNormal": lambda: tf.raw_ops.ParameterizedTruncatedNormal(shape=[2, 5], **BOUNDS),
        "RandomGamma": lambda: tf.random.gamma([2], 1.5),
        "RandomPoissonV2": lambda: tf.random.poisson([2], 1.5),
        "StatefulRandomBinomial": lambda: generator().binomial([2], [5.0, 5.0], [0.5, 0.5]),
        "StatelessRandomPoisson": lambda: tf.random.stateless_poisson([2], (1, 2), 1.5),
        "StatelessShuffle": lambda: tf.random.experimental.stateless_shuffle(tf.range(5), (1, 2)),
        "LogUniformCandidateSampler": lambda: tf.random.log_uniform_candidate_sampler([[1]], 1, 2, True, 9)[0],
    }.items(),
)
def test_rejects_draws_without_an_xla_kernel(kind: str, draw: Callable[[], Any]) -> None:
    with pytest.raises(ModelFnError, match=kind):
        Compiled(draw)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_layers_draw_different_numbers_on_replicas(library: str) -> None:
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
