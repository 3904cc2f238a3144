from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.datasets import Written, write_images


@pytest.fixture(scope="module", params=[None, "gzip"])
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """150 small colour pictures of different sizes in 3 shards, plain and compressed: a compressed block holds 64 records."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (4 + i % 5, 9 - i % 4, 3), dtype=np.uint8) for i in range(150)]
    labels = {"train": [i % 10 for i in range(150)]}
    folder = str(tmp_path_factory.mktemp("pictures"))
    return write_images(folder, {"train": images}, labels, shape=(None, None, 3), compression=request.param)
