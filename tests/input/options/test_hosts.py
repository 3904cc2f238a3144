"""The rows of each global batch that a host feeds."""

from __future__ import annotations

import types
from typing import Any

import pytest
import tensorflow as tf

from tpudata import UsageError
from tpudata.input.options.hosts import Rows, find_rows


class OriginalContext:
    """The TPUContext of the original estimator, as far as input_fn sees it."""

    def __init__(self, number: int, calls: int) -> None:
        self.num_hosts = calls
        self._deployment = (f"/job:worker/task:{number}", number, calls, 8)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        return self._deployment


def test_a_single_host_feeds_the_global_batch() -> None:
    assert find_rows(6, {}, None) == find_rows(6, {"context": None}, None) == Rows(6, 6, 0, 6)
    assert find_rows(6, {}, tf.distribute.InputContext()) == Rows(6, 6, 0, 6)


def test_per_host_v2_feeds_a_batch_per_replica() -> None:
    context: Any = OriginalContext(1, 2)
    context._internal_ctx = types.SimpleNamespace(is_input_per_host_with_iterators=lambda: True)
    assert find_rows(6, {"context": context}, None) == Rows(6, 96, 48, 96)
    context._internal_ctx = types.SimpleNamespace(is_input_per_host_with_iterators=lambda: False)
    assert find_rows(6, {"context": context}, None) == Rows(6, 12, 6, 12)


def test_an_input_context_divides_the_replicas_batches() -> None:
    def rows(pipelines: int, replicas: int) -> list[Rows]:
        return [
            find_rows(6, {}, tf.distribute.InputContext(pipelines, number, replicas)) for number in range(pipelines)
        ]

    # 8 replicas on 2 hosts: a global batch of 48, of which each host feeds 24 in batches of 6.
    assert rows(2, 8) == [Rows(6, 48, 0, 24), Rows(6, 48, 24, 48)]
    assert rows(1, 4) == [Rows(6, 24, 0, 24)]
    assert [row.count for row in rows(3, 3)] == [6, 6, 6]
    # Without a number of replicas, there is one per pipeline.
    assert find_rows(6, {}, tf.distribute.InputContext(4, 3)) == Rows(6, 24, 18, 24)


def test_the_original_context_gives_the_rows_of_its_call() -> None:
    assert find_rows(6, {"context": OriginalContext(2, 4)}, None) == Rows(6, 24, 12, 18)
    # The strategy's context takes precedence.
    assert find_rows(6, {"context": OriginalContext(2, 4)}, tf.distribute.InputContext(2, 0)) == Rows(6, 12, 0, 6)


@pytest.mark.parametrize(
    ("params", "context", "message"),
    [
        ({}, tf.distribute.InputContext(3, 0, 4), "4 replicas on 3 input pipelines"),
        ({}, tf.distribute.InputContext(2, 2), r"Input pipeline 2 of 2: out of range \(expected 0 to 1\)"),
        ({"context": type("Hosts", (), {"num_hosts": 2})()}, None, "2 hosts and does not say which one"),
        ({"context": OriginalContext(-1, 2)}, None, "Input pipeline -1 of 2"),
    ],
)
def test_rejects_host_and_replica_counts_that_do_not_fit(params: Any, context: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_rows(6, params, context)
