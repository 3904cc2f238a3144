from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec
from tpudata.estimator.api.errors import ModelFnError

Reduction = v1.losses.Reduction


def test_on_one_device_it_changes_nothing(tmp_path: Path) -> None:
    def model_fn(reduction: str | None) -> Any:
        def inner(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
            loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
            optimizer = v1.train.AdamOptimizer(0.1)
            if reduction is not None:
                optimizer = CrossShardOptimizer(optimizer, reduction=reduction)
            step = v1.train.get_global_step()
            pairs = optimizer.compute_gradients(loss)
            train_op = optimizer.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs], global_step=step)
            if reduction is not None:
                assert optimizer.get_slot_names() == ["m", "v"]
                assert optimizer.get_slot(pairs[0][1], "m") is not None
                assert len(optimizer.variables()) == 6
            return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return inner

    results = []
    for name, reduction in (("plain", None), ("mean", Reduction.MEAN), ("sum", Reduction.SUM)):
        estimator = make_estimator(tmp_path / name, model_fn(reduction))
        results.append(programs.variables(estimator.train(train_input_fn, steps=6)))
    plain, *wrapped = results
    for values in wrapped:
        assert sorted(values) == sorted(plain)
        for key, value in plain.items():
            np.testing.assert_array_equal(values[key], value, err_msg=key)


def test_what_it_rejects() -> None:
    with pytest.raises(TypeError, match="or an optimizer of tf_keras or Keras 3, got float"):
        CrossShardOptimizer(0.1)
    with pytest.raises(ValueError, match="reduction"):
        CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1), reduction=Reduction.NONE)


@pytest.mark.parametrize(
    "options", [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 3}]
)
def test_rejects_keras_options_for_every_nth_step(options: dict[str, Any]) -> None:
    """They do nothing in a graph: the first of them left the weights as they were."""
    keras = pytest.importorskip("keras")
    with pytest.raises(ModelFnError, match="has no effect in a graph"):
        CrossShardOptimizer(keras.optimizers.SGD(0.1, **options))
