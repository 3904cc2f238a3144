from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.estimator import export

v1 = tf.compat.v1
X = tf.zeros([2, 3])


def test_raw_receivers_take_names_and_shapes_from_the_features() -> None:
    features = {"x": np.zeros([4, 3], np.float32), "n": tf.zeros([4], tf.int64)}
    for size in (None, 8):
        with tf.Graph().as_default():
            receiver = export.build_raw_serving_input_receiver_fn(features, size)()
            assert receiver.features == receiver.receiver_tensors
            shapes = {name: (item.dtype, item.shape.as_list()) for name, item in receiver.features.items()}
        assert shapes == {"x": (tf.float32, [size, 3]), "n": (tf.int64, [size])}


def test_parsing_receivers_parse_examples() -> None:
    spec = {"x": tf.io.FixedLenFeature([2], tf.int64), "words": tf.io.VarLenFeature(tf.string)}
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 4]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
    with tf.Graph().as_default(), v1.Session() as session:
        receiver = export.build_parsing_serving_input_receiver_fn(spec)()
        assert list(receiver.receiver_tensors) == ["examples"]
        assert isinstance(receiver.features["words"], tf.SparseTensor)
        found = session.run(receiver.features["x"], {receiver.receiver_tensors["examples"]: [example]})
    np.testing.assert_array_equal(found, [[3, 4]])


def test_single_tensors_get_default_names() -> None:
    receiver = export.ServingInputReceiver(X, X, {"other": X})
    assert list(receiver.features) == ["feature"]
    assert list(receiver.receiver_tensors) == ["input"]
    assert receiver.receiver_tensors_alternatives == {"other": {"input": X}}
    assert export.TensorServingInputReceiver(X, X).features is X
    assert export.ServingInputReceiver({0: X}, X).features == {0: X}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: export.ServingInputReceiver(None, X), "no features"),
        (lambda: export.ServingInputReceiver(X, None), "no receiver_tensors"),
        (lambda: export.ServingInputReceiver({"a": 3}, X), "'a' must be a tensor, got int"),
        (lambda: export.ServingInputReceiver(X, {3: X}), "names must be strings, got 3"),
        (lambda: export.ServingInputReceiver(X, X, [X]), "alternatives"),  # type: ignore[arg-type]
        (lambda: export.ServingInputReceiver(X, X, {"a": 3}), r"alternatives\['a'\].*got int"),
        (lambda: export.TensorServingInputReceiver({"a": X}, X), "got dict.*ServingInputReceiver"),
    ],
)
def test_rejects_wrong_receivers(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
