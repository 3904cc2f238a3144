"""The input of each piece of a mixture, compared with exact fractions.

The order is private: reading batches up to step 10**12 would take years.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.order.mixture import MixtureOrder

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(1, 300), st.integers(0, 10**12))
def test_every_input_gets_its_share_after_any_step(weights: list[float], batch_size: int, step: int) -> None:
    order = MixtureOrder.make(weights, batch_size)
    assert batch_size % order.num_pieces == 0
    given_pieces = order.count_pieces_before(step)
    assert sum(given_pieces) == step * order.num_pieces
    total = sum(map(Fraction, weights))
    for count, weight in zip(given_pieces, weights, strict=True):
        share = Fraction(weight) / total
        # Weights are rounded to 2**-30.
        assert abs(count - step * order.num_pieces * share) <= len(weights) * (1 + step * order.num_pieces / 2**30)


@settings(max_examples=8, deadline=None)
@given(WEIGHTS, st.integers(1, 64), st.integers(0, 10**9))
def test_choices_equal_the_pieces_that_each_step_adds(weights: list[float], batch_size: int, step: int) -> None:
    order = MixtureOrder.make(weights, batch_size)
    choices = list(itertools.islice(order.list_inputs(step).as_numpy_iterator(), 3 * order.num_pieces))
    for number in range(3):
        here = choices[number * order.num_pieces : (number + 1) * order.num_pieces]
        before, after = order.count_pieces_before(step + number), order.count_pieces_before(step + number + 1)
        assert [here.count(i) for i in range(len(weights))] == [b - a for a, b in zip(before, after, strict=True)]
