"""Weights, static shapes and names of leaves."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tpudata import FeatureError
from tpudata.input.elements import check_static, map_named, named_leaves, set_row_count
from tpudata.input.graph.steps.weights import add_weights_feature, has_room


def test_weights_join_the_features() -> None:
    weights = tf.ones([2])
    features, labels = add_weights_feature(({"x": 1}, 2), weights)
    assert features == {"x": 1, "weights": weights}
    assert labels == 2
    assert add_weights_feature({"x": 1}, weights)["weights"] is weights


def test_with_rows_makes_the_row_count_static() -> None:
    dataset = tf.data.Dataset.range(8).batch(4).map(lambda x: set_row_count({"x": x}, 4))
    assert dataset.element_spec == {"x": tf.TensorSpec([4], tf.int64)}
    wrong = tf.data.Dataset.range(7).batch(4).map(lambda x: set_row_count({"x": x}, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3\].*\[4\]"):
        list(wrong)


def test_has_room_only_for_weights_in_a_dict() -> None:
    spec = tf.TensorSpec([2], tf.float32)
    assert has_room(({"x": spec}, spec))
    assert has_room({"x": spec})
    assert not has_room((spec, spec))
    assert not has_room(spec)
    with pytest.raises(FeatureError, match="'weights'"):
        has_room(({"weights": spec}, spec))


def test_names_leaves_in_the_order_of_tf_nest() -> None:
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
def test_check_static_names_a_leaf_that_is_not_static(spec: Any) -> None:
    check_static({"good": tf.TensorSpec([2, 3])}, "the batch")
    with pytest.raises(FeatureError, match=r"the batch\[0\]\['bad'\] is .*not static"):
        check_static(({"bad": spec, "good": tf.TensorSpec([2])},), "the batch")
