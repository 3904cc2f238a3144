from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.helpers.datasets import Written, write_images


def _digits(folder: str, layout: str) -> Written:
    data = load_digits()
    pixels = (data.images * 15).astype(np.uint8)[..., None]
    images = {"train": pixels[:300], "test": pixels[300:401]}
    labels = {"train": data.target[:300], "test": data.target[300:401]}
    return write_images(folder, images, labels, shape=(8, 8, 1), layout=layout)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: Any) -> Written:
    """300 + 101 real digits as PNG, in 3 shards a split."""
    return _digits(str(tmp_path_factory.mktemp("digits")), "imagenet")


@pytest.fixture(scope="session")
def raw_digits(tmp_path_factory: Any) -> Written:
    """The same digits as raw bytes."""
    return _digits(str(tmp_path_factory.mktemp("raw")), "raw")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: Any) -> Written:
    """Seven colour pictures of different sizes."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (20 + 3 * i, 40 - 2 * i, 3), dtype=np.uint8) for i in range(7)]
    path = str(tmp_path_factory.mktemp("pictures"))
    return write_images(path, {"train": images}, {"train": list(range(7))}, shape=(None, None, 3), shards=2)
