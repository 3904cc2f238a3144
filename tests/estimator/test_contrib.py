from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.estimator.contrib import flatten, l1_regularizer, l2_regularizer, layer_norm

v1 = tf.compat.v1
X = np.random.default_rng(3).normal(2, 5, [4, 6, 8]).astype(np.float32)


def normalized(value: Any, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    with tf.Graph().as_default(), v1.Session() as session:
        result = layer_norm(tf.constant(value), **arguments)
        session.run(v1.global_variables_initializer())
        return session.run(result), {item.name: tuple(item.shape) for item in v1.trainable_variables()}


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_norm_equals_numpy(axis: int) -> None:
    found, variables = normalized(X, begin_norm_axis=axis, scope="norm")
    axes = tuple(range(axis % 3, 3))
    expected = (X - X.mean(axes, keepdims=True)) / X.std(axes, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert variables == {"norm/beta:0": (8,), "norm/gamma:0": (8,)}


def test_layer_norm_names_its_variables_as_bert_does() -> None:
    assert normalized(X)[1] == {"LayerNorm/beta:0": (8,), "LayerNorm/gamma:0": (8,)}
    assert normalized(X, center=False, begin_params_axis=1)[1] == {"LayerNorm/gamma:0": (6, 8)}


def test_layer_norm_applies_activations_and_fills_collections() -> None:
    with tf.Graph().as_default() as graph:
        result = layer_norm(
            tf.constant(X),
            activation_fn=tf.nn.relu,
            outputs_collections="out",
            variables_collections={"gamma": ["mine"]},
        )
        assert result.op.type == "Relu"
        assert graph.get_collection("out") == [result]
        assert [item.name for item in graph.get_collection("mine")] == ["LayerNorm/gamma:0"]
        assert len(v1.global_variables()) == 2


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        (None, {}, "unknown rank"),
        ([2, None], {}, "must have known sizes from axis 1 on"),
        ([2, 3], {"begin_norm_axis": 2}, "no such axis"),
    ],
)
def test_layer_norm_rejects_wrong_inputs(shape: Any, arguments: dict[str, Any], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        layer_norm(v1.placeholder(tf.float32, shape), **arguments)


def test_flatten_keeps_rows_and_names() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        known = flatten(v1.placeholder_with_default(X, [None, 6, 8]), scope="flat", outputs_collections="out")
        unknown = flatten(v1.placeholder_with_default(X, [None, None, 8]))
        for result in (known, unknown):
            np.testing.assert_array_equal(session.run(result), X.reshape(4, 48))
        assert known.shape.as_list() == [None, 48]
        assert (known.name.split("/")[0], unknown.name.split("/")[0]) == ("flat", "Flatten")
        assert graph.get_collection("out") == [known]
        with pytest.raises(ValueError, match="has the rank 0"):
            flatten(tf.constant(1.0))


def test_regularizers_equal_numpy() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        for make, expected in ((l1_regularizer, 0.25 * np.abs(X).sum()), (l2_regularizer, 0.25 * (X**2).sum() / 2)):
            v1.get_variable(make.__name__, initializer=X, regularizer=make(0.25, scope="loss"))
            session.run(v1.global_variables_initializer())
            found = v1.losses.get_regularization_losses()[-1]
            np.testing.assert_allclose(session.run(found), expected, rtol=1e-5)
            assert "/loss" in found.name
            assert make(0.0)(tf.constant(X)) is None
            for scale in (1, -0.5):
                with pytest.raises(ValueError, match="wrong scale"):
                    make(scale)
