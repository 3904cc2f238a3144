"""Normalized images compared with numpy in double precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.datasets import write_images
from tpudata import Images, Normalize, UsageError, make_input_fn

# Half of the last place, relative to the value.
ROUNDING = {"float32": 2e-7, "bfloat16": 2**-8, "float16": 2**-11}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(
    "scale", [Normalize.imagenet(), Normalize(mean=(0.5,), std=(0.25,))], ids=["of each channel", "of all"]
)
def test_normalized_values_equal_numpy(tmp_path: Path, dtype: Any, scale: Normalize) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    data = write_images(str(tmp_path), {"train": list(pixels)}, {"train": [0] * 6}, shape=(4, 5, 3), layout="raw")
    input_fn = make_input_fn(data.path, "train", training=False, images=Images(dtype=dtype, normalize=scale))
    ((features, _),) = input_fn({"batch_size": 6}).as_numpy_iterator()
    assert features["image"].dtype == dtype
    want = (pixels / 255 - scale.mean) / scale.std
    np.testing.assert_allclose(features["image"].astype(float), want, rtol=1.01 * ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5, 0.5), (0.5,)),
        ((), ()),
        ((0.5,), (0.0,)),
        ((0.5,), (-1.0,)),
        ((math.nan,), (1.0,)),
        ((0.5,), (math.inf,)),
        ([0.5], [0.5]),
        (0.5, 0.5),
        (("0.5",), (0.5,)),
    ],
)
def test_rejects_options_out_of_range(mean: Any, std: Any) -> None:
    with pytest.raises(UsageError, match="Normalize"):
        Normalize(mean, std)
