"""Padding, weights and names of leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata import FeatureError
from tpudata.input.batch import check_static, has_room, map_named, named_leaves, pad_batch, with_weights


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_padding_equals_a_plain_loop(data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, 6))
    rows = data.draw(st.integers(1, batch_size))
    values = np.arange(rows * 3).reshape(rows, 3)
    names = [f"row {i}" for i in range(rows)]
    (padded, padded_names), weights = pad_batch((tf.constant(values), tf.constant(names)), batch_size)
    for row in range(batch_size):
        source = row if row < rows else rows - 1
        assert padded[row].numpy().tolist() == values[source].tolist()
        assert padded_names[row].numpy() == names[source].encode()
        assert weights[row].numpy() == (1 if row < rows else 0)
    assert weights.dtype == tf.float32


def test_padding_has_a_static_shape_in_a_dataset() -> None:
    dataset = tf.data.Dataset.range(10).batch(4).map(lambda x: pad_batch({"x": x}, 4))
    assert dataset.element_spec == ({"x": tf.TensorSpec([4], tf.int64)}, tf.TensorSpec([4], tf.float32))
    assert [row["x"].tolist() for row, _ in dataset.as_numpy_iterator()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9]]


def test_weights_join_the_features() -> None:
    weights = tf.ones([2])
    features, labels = with_weights(({"x": 1}, 2), weights)
    assert features == {"x": 1, "weights": weights}
    assert labels == 2
    assert with_weights({"x": 1}, weights)["weights"] is weights


def test_where_weights_have_room() -> None:
    spec = tf.TensorSpec([2], tf.float32)
    assert has_room(({"x": spec}, spec))
    assert has_room({"x": spec})
    assert not has_room((spec, spec))
    assert not has_room(spec)
    with pytest.raises(FeatureError, match="'weights'"):
        has_room(({"weights": spec}, spec))


def test_leaves_are_named_in_the_order_of_tf_nest() -> None:
    structure: Any = ({"b": 1, "a": [2, {"c": 3}]}, 4)
    assert list(named_leaves(structure, "x")) == [
        ("x[0]['a'][0]", 2),
        ("x[0]['a'][1]['c']", 3),
        ("x[0]['b']", 1),
        ("x[1]", 4),
    ]
    assert [leaf for _, leaf in named_leaves(structure, "x")] == tf.nest.flatten(structure)
    assert map_named(lambda name, leaf: f"{name}={leaf}", structure, "x") == (
        {"b": "x[0]['b']=1", "a": ["x[0]['a'][0]=2", {"c": "x[0]['a'][1]['c']=3"}]},
        "x[1]=4",
    )


@pytest.mark.parametrize(
    "spec", [tf.TensorSpec([None, 3]), tf.TensorSpec(None), tf.RaggedTensorSpec([2, None]), tf.SparseTensorSpec([2, 2])]
)
def test_what_is_not_static_is_named(spec: Any) -> None:
    check_static({"good": tf.TensorSpec([2, 3])}, "the batch")
    with pytest.raises(FeatureError, match=r"the batch\[0\]\['bad'\] is .*not static"):
        check_static(({"bad": spec, "good": tf.TensorSpec([2])},), "the batch")
