"""Serving features from encoded images and from records equal those of evaluation.

They are private: an export gives them to a model, which shows only its predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import encode_image, write_dataset
from tpudata import CentreCrop, Images, Normalize, Tokens, make_input_fn
from tpudata.format import Feature, encode_example, open_dataset
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.serving import ServingFeatures

v1 = tf.compat.v1
LABEL = Feature("label", "int64", "int64", num_classes=3)
RANDOM = np.random.default_rng(0)
# Of several sizes; a JPEG is larger than four times the requested size, so that it is decoded at a fraction.
PICTURES = [RANDOM.integers(0, 256, (height, width, 3), np.uint8) for height, width in ((40, 50), (33, 30), (160, 200))]
FILES = [encode_image(picture, kind) for picture, kind in zip(PICTURES, ("PNG", "PNG", "JPEG"), strict=True)]
PIXELS = RANDOM.integers(0, 256, (3, 6, 4, 1), np.uint8)
ENCODED = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
RAW = Feature("image_raw", "bytes", "uint8", (6, 4, 1), "raw")
SIZE = Feature("size", "float", "float32", (2,))
IDS = Feature("input_ids", "int64", "int64", (None,))
NORMALIZE = Normalize.imagenet()


def serve(path: str, records: Sequence[bytes], images: Images | None = None, **columns: Any) -> dict[str, Any]:
    """Return the features that a served model gets of records, with options of a dataset's columns."""
    with tf.Graph().as_default(), v1.Session() as session:
        serving = ServingFeatures(open_dataset(path), images or Images(), Tokens(), FeatureOptions(**columns)).build()
        found: dict[str, Any] = session.run(serving.features, {serving.examples: records})
    return found


@pytest.mark.parametrize(
    ("layout", "values", "images", "tokens", "files"),
    [
        ("imagenet", {ENCODED: FILES}, Images(crop=CentreCrop(24)), Tokens(), FILES),
        ("imagenet", {ENCODED: FILES}, Images(size=(20, 24), dtype="float32", normalize=NORMALIZE), Tokens(), FILES),
        ("raw", {RAW: [pixels.tobytes() for pixels in PIXELS]}, Images(), Tokens(), [encode_image(p) for p in PIXELS]),
        ("mine", {ENCODED: FILES, SIZE: [[1.0, 2.0]] * 3}, Images(size=(20, 24)), Tokens(), None),
        ("tokens", {IDS: [[1], [2, 3], [4, 5, 6, 7]]}, Images(), Tokens(sequence_length=5, targets=True), None),
    ],
    ids=["crop", "size", "raw", "several", "tokens"],
)
def test_serving_features_equal_those_of_evaluation(
    layout: str, values: dict[Feature, list[Any]], images: Images, tokens: Tokens, files: Any, tmp_path: Path
) -> None:
    rows = [{feature.name: column[n] for feature, column in values.items()} for n in range(3)]
    label = {} if tokens.targets else {"label": 2}
    features = [*values, *([] if tokens.targets else [LABEL])]
    write_dataset(str(tmp_path), {"test": [{**row, **label} for row in rows]}, features, layout=layout, shards=1)
    made = make_input_fn(str(tmp_path), "test", training=False, images=images, tokens=tokens)({"batch_size": 3})
    ((expected, _),) = made.as_numpy_iterator()
    expected = {name: value for name, value in expected.items() if name not in ("weights", "token_weights")}
    with tf.Graph().as_default(), v1.Session() as session:
        serving = ServingFeatures(open_dataset(str(tmp_path)), images, tokens).build()
        # Callers have no label.
        found = [session.run(serving.features, {serving.examples: [encode_example(row) for row in rows]})]
        assert (serving.encoded_images is not None) == (files is not None)
        if files is not None:
            found.append(session.run(serving.features, {serving.encoded_images: files}))
        for served in found:
            assert served.keys() == expected.keys()
            for name, value in expected.items():
                assert serving.features[name].shape.as_list() == [None, *value.shape[1:]]
                np.testing.assert_array_equal(served[name], value)
