"""Examples of integers are those that TensorFlow writes and reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_records.int_examples import IntLists, encode_int_examples, encode_row_examples, encode_varints
from tpudata.format import encode_example

INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300), st.integers(0, 2**32))


@given(st.lists(st.tuples(st.lists(INT64, max_size=6), st.lists(INT64, max_size=3)), min_size=1, max_size=6))
def test_encodes_lists_as_tensorflow_does(records: list[tuple[list[int], list[int]]]) -> None:
    features = {
        name: IntLists.of_sizes(
            np.array([value for record in records for value in record[place]], np.int64),
            np.array([len(record[place]) for record in records]),
        )
        for place, name in enumerate(("tokens", "a"))
    }
    found = encode_int_examples(features)
    assert len(found) == len(records)
    for data, (tokens, a) in zip(found, records, strict=True):
        feature = tf.train.Example.FromString(data).features.feature
        assert (list(feature["tokens"].int64_list.value), list(feature["a"].int64_list.value)) == (tokens, a)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_encodes_rows_as_tensorflow_does(dtype: type[np.integer]) -> None:
    # The largest values of each number of bytes, and the next ones.
    edges = [0, *(edge for bits in range(7, 63, 7) for edge in (2**bits - 1, 2**bits))]
    values = np.array([edge for edge in edges if edge <= np.iinfo(dtype).max], dtype)
    rows = np.resize(values, (5000, 16))
    expected = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=row.tolist()))}
            )
        ).SerializeToString(deterministic=True)
        for row in rows
    ]
    assert encode_int_examples({"x": IntLists.of_rows(rows)}) == expected


def test_encodes_runs_across_blocks() -> None:
    values = np.random.default_rng(0).integers(0, 1 << 20, 100_000).astype(np.int32)
    ends = [0, 0, 1, 32_767, 32_769, 99_999, 100_000, 100_000]
    whole = encode_varints(values, [0, len(values)])[0]
    runs = encode_varints(values, ends)
    assert b"".join(runs) == whole
    for run, (start, end) in zip(runs, itertools.pairwise(ends), strict=True):
        assert encode_varints(values[start:end], [0, end - start]) == [run]


@pytest.mark.parametrize("count", [1, 999])
@pytest.mark.parametrize("length", [1, 31, 32, 512, 5000])
def test_encodes_rows_of_bytes_as_tensorflow_does(count: int, length: int) -> None:
    random = np.random.default_rng(length)
    features = {name: random.integers(-(2**31), 2**31, (count, length)).astype(np.int32) for name in ("b", "a", "ccc")}
    expected = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[rows[row].astype("<i4").tobytes()]))
                    for name, rows in features.items()
                }
            )
        ).SerializeToString(deterministic=True)
        for row in range(count)
    ]
    # Blocks that do not divide the rows.
    assert list(encode_row_examples(features, block_bytes=100_000)) == expected


@given(
    st.lists(
        st.tuples(st.lists(INT64, max_size=6), st.text(max_size=4), st.floats(width=32), INT64), min_size=1, max_size=6
    )
)
def test_other_features_have_the_bytes_of_single_examples(
    records: list[tuple[list[int], str, float, int]],
) -> None:
    lists, texts, numbers, counts = (list(column) for column in zip(*records, strict=True))
    ids = IntLists.of_sizes(
        np.array(list(itertools.chain.from_iterable(lists)), np.int64), np.array(list(map(len, lists)))
    )
    others = {"a": texts, "z": numbers, "n": counts}
    single = [
        encode_example({"ids": np.array(one, np.int64), "a": text, "z": number, "n": count})
        for one, text, number, count in records
    ]
    assert encode_int_examples({"ids": ids}, others) == single
