"""The features that are read, their names and shapes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import FeatureError, Images, Tokens, UsageError, make_input_fn, open_dataset
from tpudata.format import Feature, write_metadata

IMAGE = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
LABEL = Feature("image/class/label", "int64", "int64", num_classes=3)
HEIGHT = Feature("image/height", "int64", "int64")
TOKENS = Feature("input_ids", "int64", "int64", (16,))
SIZE = Images(size=(4, 6))
Fed = Callable[..., Any]


@pytest.fixture
def fed(tmp_path: Path) -> Fed:
    """A function from features, and options of `make_input_fn`, to the specs of a batch of one record."""
    numbers = itertools.count()

    def make(*features: Feature, layout: str = "imagenet", **options: Any) -> Any:
        path = write_dataset(str(tmp_path / f"{next(numbers)}"), {"train": [{}]}, features, layout=layout, shards=1)
        return make_input_fn(path, "train", training=True, **options)({"batch_size": 1}).element_spec

    return make


def test_a_layout_feeds_its_own_features(fed: Fed) -> None:
    assert fed(IMAGE, HEIGHT, images=SIZE).keys() == {"image"}
    assert fed(IMAGE, HEIGHT, images=SIZE, extra_features=("image/height",)).keys() == {"image", "image/height"}
    raw = Feature("image_raw", "bytes", "uint8", (2, 2, 1), "raw")
    features, _ = fed(raw, Feature("label", "int64", "int64"), layout="raw")
    assert features == {"image": tf.TensorSpec((1, 2, 2, 1), tf.uint8)}
    segments, positions = (Feature(name, "int64", "int64", (16,)) for name in ("segment_ids", "positions"))
    assert fed(TOKENS, segments, positions, HEIGHT, layout="tokens").keys() == {"input_ids", "segment_ids", "positions"}
    assert fed(TOKENS, segments, layout="tokens", features="segment_ids") == tf.TensorSpec((1, 16), tf.int32)


def test_separates_the_label(fed: Fed) -> None:
    image = {"image": tf.TensorSpec((1, 4, 6, 3), tf.uint8)}
    assert fed(IMAGE, LABEL, images=SIZE) == (image, tf.TensorSpec((1,), tf.int32))
    assert fed(IMAGE, images=SIZE) == image


@pytest.mark.parametrize(
    ("label", "fix"),
    [
        (Feature("label", "bytes", "string"), "Pass parse="),
        (Feature("label", "bytes", "uint8", (2,), "raw"), "Pass parse="),
        (Feature("label", "int64", "int64", (None,)), "give it num_classes in its schema"),
        (Feature("label", "float", "float32", (None,)), "Pass pad={'label': N}"),
        (Feature("label", "bytes", "uint8", (4, 4, 1), "label_map"), "let batch_transform return them"),
    ],
)
def test_rejects_features_that_cannot_be_labels(fed: Fed, label: Feature, fix: str) -> None:
    with pytest.raises(FeatureError, match=f"'label': a label is int64 or float32 of a static shape.*{fix}"):
        fed(TOKENS, label, layout="tokens")


def test_several_classes_become_a_multi_hot_label(tmp_path: Path) -> None:
    classes, ids = (Feature(name, "int64", "int64", (None,)) for name in ("image/class/label", "ids"))
    records = [{"x": 0, classes.name: [1, 7], "ids": [1]}]
    features = (Feature("x", "int64", "int64"), classes, ids)
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="", shards=1, classes=7)
    manifest = dataclasses.replace(open_dataset(path).manifest, options={"label_offset": 1})
    write_metadata(path, manifest, [str(number) for number in range(7)])
    input_fn = make_input_fn(path, "train", training=True, label=classes.name, pad={"ids": 1})
    _, labels = next(input_fn({"batch_size": 1}).as_numpy_iterator())
    assert labels.tolist() == [[1, 0, 0, 0, 0, 0, 1]]
    # Its names are no names of other numbers.
    with pytest.raises(FeatureError, match="give it num_classes in its schema"):
        make_input_fn(path, "train", training=True, label="ids", pad={classes.name: 1})


def test_rejects_varying_sizes_with_the_fix(fed: Fed) -> None:
    with pytest.raises(FeatureError, match=r"Pass images=tpudata.Images.size=.*--image-size HxW"):
        fed(IMAGE, LABEL)
    with pytest.raises(FeatureError, match=r"'input_ids'.*Pass tokens=tpudata.Tokens\(sequence_length=N\).*buckets="):
        fed(Feature("input_ids", "int64", "int64", (None,)), layout="tokens")


def test_lengths_by_name_apply_only_to_unpadded_sequences(fed: Fed) -> None:
    both = [Feature(name, "int64", "int64", (None,)) for name in ("tokens", "tags")]
    found = fed(*both, layout="other", pad={"tags": 3}, tokens=Tokens(sequence_length={"tokens": 5}))
    assert {name: found[name].shape for name in ("tokens", "tags")} == {"tokens": (1, 5), "tags": (1, 3)}
    with pytest.raises(UsageError, match=r"a name is not that of a sequence.*got tags, expected tokens"):
        fed(*both, layout="other", pad={"tags": 3}, tokens=Tokens(sequence_length={"tags": 5}))


def test_rejects_channel_counts_that_do_not_decode(fed: Fed) -> None:
    with pytest.raises(FeatureError, match="2 channels"):
        fed(Feature("image/encoded", "bytes", "uint8", (4, 4, 2), "image"))


def test_rejects_a_dataset_without_its_layouts_features(fed: Fed) -> None:
    with pytest.raises(FeatureError, match=r"Layout 'imagenet' feeds image/encoded.*has image/height"):
        fed(HEIGHT)


@pytest.mark.parametrize("option", ["label", "weight"])
def test_names_the_option_that_takes_the_only_feature(fed: Fed, option: str) -> None:
    image = Feature("image_raw", "bytes", "uint8", (2, 2, 1), "raw")
    number = Feature("image_raw", "float", "float32")
    with pytest.raises(
        FeatureError, match=rf"^{option}='image_raw': layout 'raw' then feeds no feature\. Name another"
    ):
        fed(image if option == "label" else number, HEIGHT, layout="raw", **{option: "image_raw"})


def test_rejects_a_dataset_with_only_a_label(fed: Fed) -> None:
    with pytest.raises(
        FeatureError,
        match="Nothing is left to feed a model: the label is 'label', and the records have no other feature",
    ):
        fed(Feature("label", "int64", "int64"), layout="")


def test_rejects_two_features_with_one_name(fed: Fed) -> None:
    features = (Feature("a_raw", "bytes", "uint8", (1,), "raw"), Feature("a", "int64", "int64"))
    with pytest.raises(FeatureError, match="same name: a, a"):
        fed(*features, layout="table")


def test_rejects_extra_features_that_are_already_fed_or_missing(fed: Fed) -> None:
    for name in ("image/encoded", "image/class/label"):
        with pytest.raises(UsageError, match=f"{name!r} is read anyway"):
            fed(IMAGE, LABEL, images=SIZE, extra_features=(name,))
    with pytest.raises(FeatureError, match=r"'image/size'.*image/height"):
        fed(IMAGE, HEIGHT, images=SIZE, extra_features=("image/size",))
