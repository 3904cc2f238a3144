"""Varints of whole blocks, against protobuf's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input import varints
from tpudata.input.varints import count_varints, decode_varints


def encoded(values: list[int]) -> bytes:
    """The packed values as protobuf writes them, behind a tag and a length."""
    data: bytes = tf.train.Int64List(value=values).SerializeToString()
    place = 1
    while data[place : place + 1] >= b"\x80":
        place += 1
    return data[place + 1 :]


integers = st.one_of(
    st.integers(0, 300),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([127, 128, 2**14 - 1, 2**14, 2**28 - 1, 2**28]),
)


@settings(max_examples=100)
@given(st.lists(st.lists(integers, max_size=8), min_size=1, max_size=8), st.integers(1, 12))
def test_runs_of_any_integers_come_back(runs: list[list[int]], block: int) -> None:
    parts = [encoded(run) for run in runs]
    data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varints, "_BLOCK", block)
        values, counts = decode_varints(data, ends)
    assert values.tolist() == [value for run in runs for value in run]
    assert counts.tolist() == count_varints(data, ends).tolist() == [len(run) for run in runs]


def test_small_integers_come_as_int32() -> None:
    for values, dtype in (
        ([], np.int32),
        ([0, 127], np.int32),
        ([0, 2**14 - 1], np.int32),
        ([127, 128, 2**28 - 1], np.int32),
        ([2**28], np.int64),
    ):
        data = np.frombuffer(encoded(values) if values else b"", np.uint8)
        found, _ = decode_varints(data, np.array([0, len(data)]))
        assert found.dtype == dtype
        assert found.tolist() == values


@pytest.mark.parametrize(
    ("data", "message"), [(b"\x01\x80", "cut off"), (b"\x80" * 10 + b"\x01", "an integer of 11 bytes")]
)
def test_what_is_no_varint_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_varints(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
