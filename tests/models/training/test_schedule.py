"""Learning rates at any step, compared with TensorFlow's.

A training shows only the steps that it takes.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from tpudata.models.training.schedule import learning_rate_at


def rates(count: int, *args: object, **kwargs: object) -> list[float]:
    return [float(learning_rate_at(tf.constant(step, tf.int64), *args, **kwargs)) for step in range(count)]  # type: ignore[arg-type]


def test_constant_schedule_warms_up() -> None:
    assert rates(6, 0.4, warmup_steps=4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert rates(3, 0.4) == pytest.approx([0.4] * 3)


def test_cosine_schedule_equals_tensorflow() -> None:
    found = rates(14, 2.0, "cosine", warmup_steps=3, decay_steps=11, end=0.5)
    assert found[:3] == pytest.approx([2 / 3, 4 / 3, 2.0])
    schedule = tf.compat.v1.train.cosine_decay
    expected = [float(schedule(2.0, step, 8, alpha=0.25)()) for step in range(11)]
    np.testing.assert_allclose(found[3:], expected, rtol=1e-5)
    assert found[11:] == pytest.approx([0.5] * 3)
    assert found[7] == pytest.approx(0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi / 2)))


def test_step_schedule_decays_at_its_boundaries() -> None:
    found = rates(7, 1.0, "step", boundaries=(2, 5), factor=0.1, warmup_steps=2)
    assert found == pytest.approx([0.5, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_schedule_requires_decay_steps() -> None:
    with pytest.raises(ValueError, match="decay_steps"):
        learning_rate_at(tf.constant(0), 1.0, "cosine")
