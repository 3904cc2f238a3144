from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, make_estimator, v1
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec


@pytest.mark.parametrize("with_hooks", [False, True])
def test_an_infinite_loss_does_not_end_training(
    with_hooks: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scale = np.ones([40, 1], np.float32)
    scale[8:16] = np.inf  # the second batch

    def input_fn(params: dict[str, Any]) -> Any:
        features = {"x": X, "scale": scale}
        return tf.data.Dataset.from_tensor_slices((features, Y)).batch(params["batch_size"], drop_remainder=True)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss * features["scale"][0, 0], train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn, iterations=4, save_summary_steps=1)
    estimator.train(input_fn, hooks=[v1.train.SessionRunHook()] if with_hooks else None)
    found = programs.losses(tmp_path)
    assert [bool(np.isinf(loss)) for loss in found] == [False, True, False, False, False]
    assert [record.message for record in caplog.records if "infinite" in record.message] == [
        f"The loss is infinite at or before step {2 if with_hooks else 5}; training continues."
    ]
