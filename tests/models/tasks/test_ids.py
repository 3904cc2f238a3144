"""tpudata.models.tasks.ids: integers of any type as int32."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpudata.models.tasks.ids import cast_ids

_MIN, _MAX = -(2**31), 2**31 - 1


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (np.uint8, [0, 255], [0, 255]),
        (np.int16, [-3, 7], [-3, 7]),
        (np.int32, [_MIN, _MAX], [_MIN, _MAX]),
        (np.uint32, [5, 2**31, 2**32 - 1], [5, _MAX, _MAX]),
        (np.int64, [-5, 5, 2**32 + 1, -(2**32)], [-5, 5, _MAX, _MIN]),
        (np.uint64, [5, 2**32 + 1, 2**63 - 1, 2**64 - 1], [5, _MAX, _MAX, -1]),
    ],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_value_beyond_int32_never_becomes_a_valid_class(
    dtype: type[np.integer], values: list[int], expected: list[int], jit_compile: bool
) -> None:
    found = tf.function(cast_ids, jit_compile=jit_compile)(tf.constant(np.array(values, dtype)))
    assert found.dtype == tf.int32
    assert found.numpy().tolist() == expected
