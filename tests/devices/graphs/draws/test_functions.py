"""Draws inside loops, conditions and called functions depend on the step, the replica and the function's run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.devices.graphs.draws.compiled import Compiled
from tpudata.devices.graphs.random_graph import rewrite_random_operations
from tpudata.estimator import ModelFnError

v1 = tf.compat.v1


def draw() -> Any:
    return v1.random_uniform([3])


def is_true() -> Any:
    """Return true as a tensor that a trace cannot fold to a constant."""
    return tf.reduce_sum(v1.random_normal([2], seed=1)) > -1e9


def loop(body: Callable[[Any], Any], runs: int) -> Any:
    """Return the stacked results of a function of the iteration."""
    results = tf.TensorArray(tf.float32, runs, element_shape=body(tf.constant(0)).shape)

    def step(number: Any, results: Any) -> Any:
        return number + 1, results.write(number, body(number))

    return tf.while_loop(lambda number, _: number < runs, step, [0, results], maximum_iterations=runs)[1].stack()


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def called() -> Any:
    return draw()


# Functions whose results have a row for each run of an operation.
PLACES: dict[str, Callable[[], Any]] = {
    "loop": lambda: loop(lambda _: draw(), 4),
    "nested loops": lambda: tf.reshape(loop(lambda _: loop(lambda _: draw(), 3), 3), [9, 3]),
    "condition": lambda: tf.cond(is_true(), draw, lambda: tf.zeros([3]))[None],
    "other branch": lambda: tf.cond(tf.logical_not(is_true()), lambda: tf.zeros([3]), draw)[None],
    "case": lambda: loop(lambda number: tf.switch_case(number, [draw, draw, lambda: draw() + 1.0]), 3),
    "calls": lambda: tf.stack([called(), called()]),
    "calls in a loop": lambda: tf.reshape(loop(lambda _: tf.stack([called(), called()]), 2), [4, 3]),
    "condition in a loop": lambda: loop(lambda number: tf.cond(number > 0, called, draw), 3),
    "map": lambda: tf.map_fn(lambda row: row + draw(), tf.zeros([3, 3])),
}


@pytest.fixture(scope="module")
def places() -> Compiled:
    return Compiled(lambda: {name: place() for name, place in PLACES.items()})


def test_runs_steps_and_replicas_draw_different_numbers(places: Compiled) -> None:
    found = [places(*place) for place in ((0, 0), (1, 0), (0, 1), (5, 3))]
    for name in PLACES:
        values = np.concatenate([results[name] for results in found])
        assert len(np.unique(values)) == values.size, name
        assert ((values >= 0) & (values < 2)).all(), name


def test_a_second_compilation_repeats_the_draws(places: Compiled) -> None:
    again = Compiled(lambda: {name: place() for name, place in PLACES.items()})
    for name, values in places(3, 2).items():
        np.testing.assert_array_equal(again(3, 2)[name], values, err_msg=name)


def test_the_compiler_gets_no_draws(places: Compiled) -> None:
    assert "stablehlo.rng " not in places.text


def test_replaced_draws_keep_their_static_shapes(places: Compiled) -> None:
    assert all(shape.is_fully_defined() for shape in places.shapes)


def test_gradients_use_the_drawn_values() -> None:
    def build() -> Any:
        w = tf.constant(2.0)
        dropped = loop(lambda _: v1.nn.dropout(w * tf.ones([50]), rate=0.5), 4)
        return dropped, tf.gradients(dropped, w)[0]

    compiled = Compiled(build)
    for replica in range(2):
        dropped, gradient = compiled(7, replica)
        assert set(np.unique(dropped)) == {0.0, 4.0}
        assert gradient == dropped.sum() / 2


def test_dropout_of_a_recurrent_cell_differs_between_its_steps() -> None:
    class Cell:
        state_size = output_size = 20

        def zero_state(self, rows: Any, dtype: Any) -> Any:
            return tf.zeros([rows, 20], dtype)

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:  # noqa: ARG002
            return v1.nn.dropout(inputs, rate=0.5), state

    rows = Compiled(lambda: v1.nn.dynamic_rnn(Cell(), tf.ones([2, 5, 20]), dtype=tf.float32)[0])(1, 1)
    assert len({step.tobytes() for step in np.swapaxes(rows, 0, 1)}) == 5


def test_a_loop_can_end_by_a_draw() -> None:
    def build() -> Any:
        def goes_on(number: Any) -> Any:
            return v1.random_uniform([]) < 0.9

        return tf.while_loop(goes_on, lambda number: number + 1, [tf.constant(0)])

    compiled = Compiled(build)
    ends = [int(np.squeeze(compiled(step, replica))) for step in range(8) for replica in range(3)]
    assert len(set(ends)) > 5
    assert max(ends) < 200


def test_rejects_draws_in_functions_without_a_position() -> None:
    def draws() -> Any:
        numbers = tf.data.Dataset.range(3).map(lambda _: v1.random_uniform([], seed=1))
        return numbers.reduce(0.0, lambda total, number: total + number)

    with pytest.raises(ModelFnError, match=r"condition, a loop or a tf\.function"):
        Compiled(draws)
    with pytest.raises(ModelFnError, match="RandomGamma"):
        Compiled(lambda: tf.cond(is_true(), lambda: tf.random.gamma([2], 1.0), lambda: tf.zeros([2])))


def test_leaves_a_graph_without_draws_unchanged() -> None:
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.int64, [], name="step")
        v1.placeholder(tf.int32, [], name="replica")
        loop(lambda number: tf.cast(number, tf.float32), 3)
    assert rewrite_random_operations(graph.as_graph_def(), "step", "replica") == graph.as_graph_def()
