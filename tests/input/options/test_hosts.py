"""The rows of each global batch that a host feeds, of files whose lines are numbers."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tpudata import TextLineFiles, UsageError, make_input_fn

LINES = 2000
Rows = Callable[[Any, Any], list[int]]


class OriginalContext:
    """The TPUContext of the original estimator, as far as input_fn sees it."""

    def __init__(self, number: int, calls: int) -> None:
        self.num_hosts = calls
        self._deployment = (f"/job:worker/task:{number}", number, calls, 8)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        return self._deployment


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """A function from params and an InputContext to the numbers of twenty batches of 6."""
    path = tmp_path_factory.mktemp("numbers") / "lines"
    path.write_text("".join(f"{number}\n" for number in range(LINES)))
    input_fn = make_input_fn(TextLineFiles(path), training=True, shuffle=False)

    def feed(params: Any, context: Any) -> list[int]:
        dataset = input_fn({"batch_size": 6, **params}, context)
        return [int(line) for batch in dataset.take(20).as_numpy_iterator() for line in batch["text"]]

    return feed


def part(total: int, first: int, last: int) -> list[int]:
    """The numbers of twenty batches of 6: the rows [first, last) of global batches of `total` rows, one after the other."""
    steps = -(-120 // (last - first))
    return [step * total + row for step in range(steps) for row in range(first, last)][:120]


def test_a_single_host_feeds_the_global_batch(rows: Rows) -> None:
    for params, context in (({}, None), ({"context": None}, None), ({}, tf.distribute.InputContext())):
        assert rows(params, context) == part(6, 0, 6)


def test_per_host_v2_feeds_a_batch_per_replica(rows: Rows) -> None:
    context: Any = OriginalContext(1, 2)
    context._internal_ctx = types.SimpleNamespace(is_input_per_host_with_iterators=lambda: True)
    assert rows({"context": context}, None) == part(96, 48, 96)
    context._internal_ctx = types.SimpleNamespace(is_input_per_host_with_iterators=lambda: False)
    assert rows({"context": context}, None) == part(12, 6, 12)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        # 8 replicas on 2 hosts: a global batch of 48, of which each host feeds 24 in batches of 6.
        ((2, 0, 8), (48, 0, 24)),
        ((2, 1, 8), (48, 24, 48)),
        ((1, 0, 4), (24, 0, 24)),
        ((3, 1, 3), (18, 6, 12)),
        # Without a number of replicas, there is one per pipeline.
        ((4, 3), (24, 18, 24)),
    ],
)
def test_an_input_context_divides_the_replicas_batches(
    rows: Rows, context: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    assert rows({}, tf.distribute.InputContext(*context)) == part(*expected)


def test_the_original_context_gives_the_rows_of_its_call(rows: Rows) -> None:
    assert rows({"context": OriginalContext(2, 4)}, None) == part(24, 12, 18)
    # The strategy's context takes precedence.
    assert rows({"context": OriginalContext(2, 4)}, tf.distribute.InputContext(2, 0)) == part(12, 0, 6)


@pytest.mark.parametrize(
    ("params", "context", "message"),
    [
        ({}, tf.distribute.InputContext(3, 0, 4), "4 replicas on 3 input pipelines"),
        ({}, tf.distribute.InputContext(2, 2), r"Input pipeline 2 of 2: out of range \(expected 0 to 1\)"),
        ({"context": type("Hosts", (), {"num_hosts": 2})()}, None, "2 hosts and does not say which one"),
        ({"context": OriginalContext(-1, 2)}, None, "Input pipeline -1 of 2"),
    ],
)
def test_rejects_host_and_replica_counts_that_do_not_fit(rows: Rows, params: Any, context: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rows(params, context)
