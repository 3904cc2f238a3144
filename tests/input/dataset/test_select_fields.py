"""The features that are read, their names and shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tpudata import FeatureError, Manifest, UsageError
from tpudata.format import Feature, Source
from tpudata.input.dataset.select_fields import select_fields
from tpudata.input.options.columns import FeatureOptions

IMAGE = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
LABEL = Feature("image/class/label", "int64", "int64", num_classes=3)
HEIGHT = Feature("image/height", "int64", "int64")
CLASS_TEXT = Feature("image/class/text", "bytes", "string", encoding="utf8")
TOKENS = Feature("input_ids", "int64", "int64", (16,))


def manifest(*features: Feature, layout: str = "imagenet") -> Manifest:
    return Manifest(layout, {}, features, Source("memory", 0, 0, "0"), "tests")


def names(*features: Feature, **options: Any) -> list[str]:
    layout = options.pop("layout", "imagenet")
    return [field.name for field in select_fields(manifest(*features, layout=layout), **options).inputs]


def test_a_layout_feeds_its_own_features() -> None:
    size = (8, 8)
    assert names(IMAGE, LABEL, HEIGHT, image_size=size) == ["image"]
    assert names(IMAGE, LABEL, HEIGHT, image_size=size, columns=FeatureOptions(extra_features=("image/height",))) == [
        "image",
        "image/height",
    ]
    raw = Feature("image_raw", "bytes", "uint8", (2, 2, 1), "raw")
    assert names(raw, Feature("label", "int64", "int64"), layout="raw") == ["image"]
    segments, positions = (Feature(name, "int64", "int64", (16,)) for name in ("segment_ids", "positions"))
    assert names(TOKENS, segments, positions, HEIGHT, layout="tokens") == ["input_ids", "segment_ids", "positions"]
    assert names(TOKENS, segments, layout="tokens", columns=FeatureOptions(features="segment_ids")) == ["segment_ids"]


def test_separates_the_label() -> None:
    fields = select_fields(manifest(IMAGE, LABEL), image_size=(4, 6))
    assert fields.label is not None
    assert fields.label.feature is LABEL
    assert [field.feature for field in fields.all] == [IMAGE, LABEL]
    assert fields.inputs[0].shape == (4, 6, 3)
    assert select_fields(manifest(IMAGE), image_size=(4, 6)).label is None


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
def test_rejects_features_that_cannot_be_labels(label: Feature, fix: str) -> None:
    with pytest.raises(FeatureError, match=f"'label': a label is int64 or float32 of a static shape.*{fix}"):
        select_fields(manifest(TOKENS, label, layout="tokens"))


def test_several_classes_become_a_multi_hot_label() -> None:
    label = Feature("image/class/label", "int64", "int64", (None,))
    several = dataclasses.replace(manifest(IMAGE, label), labels=7, options={"label_offset": 1})
    found = select_fields(several, image_size=(4, 6)).label
    assert found is not None
    assert found.is_multi_hot
    assert (found.shape, found.feature.label_offset) == ((7,), 1)
    # Its names are no names of other numbers.
    ids = Feature("ids", "int64", "int64", (None,))
    with pytest.raises(FeatureError, match="give it num_classes in its schema"):
        select_fields(
            dataclasses.replace(several, features=(IMAGE, ids)), FeatureOptions(label="ids"), image_size=(4, 6)
        )


def test_rejects_varying_sizes_with_the_fix() -> None:
    with pytest.raises(FeatureError, match=r"Pass images=tpudata.Images.size=.*--image-size HxW"):
        select_fields(manifest(IMAGE, LABEL))
    with pytest.raises(FeatureError, match=r"'input_ids'.*Pass tokens=tpudata.Tokens\(sequence_length=N\).*buckets="):
        select_fields(manifest(Feature("input_ids", "int64", "int64", (None,)), layout="tokens"))


def test_lengths_by_name_apply_only_to_unpadded_sequences() -> None:
    both = manifest(*(Feature(name, "int64", "int64", (None,)) for name in ("tokens", "tags")), layout="other")
    columns = FeatureOptions(pad={"tags": 3})
    found = select_fields(both, columns, sequence_length={"tokens": 5})
    assert {field.name: field.shape for field in found.inputs if field.is_stored} == {"tokens": (5,), "tags": (3,)}
    with pytest.raises(UsageError, match=r"a name is not that of a sequence.*got tags, expected tokens"):
        select_fields(both, columns, sequence_length={"tags": 5})


def test_rejects_channel_counts_that_do_not_decode() -> None:
    with pytest.raises(FeatureError, match="2 channels"):
        select_fields(manifest(Feature("image/encoded", "bytes", "uint8", (4, 4, 2), "image")))


def test_rejects_a_dataset_without_its_layouts_features() -> None:
    with pytest.raises(FeatureError, match=r"Layout 'imagenet' feeds image/encoded.*has image/height"):
        select_fields(manifest(HEIGHT))


def test_rejects_a_dataset_with_only_a_label() -> None:
    with pytest.raises(FeatureError, match="The only feature is the label, 'label', and a model is fed others"):
        select_fields(manifest(Feature("label", "int64", "int64"), layout=""))


def test_rejects_two_features_with_one_name() -> None:
    features = (Feature("a_raw", "bytes", "uint8", (1,), "raw"), Feature("a", "int64", "int64"))
    with pytest.raises(FeatureError, match="one name: a, a"):
        select_fields(manifest(*features, layout="table"))


def test_rejects_extra_features_that_are_already_fed_or_missing() -> None:
    for name in ("image/encoded", "image/class/label"):
        with pytest.raises(UsageError, match=f"{name!r} is read anyway"):
            select_fields(manifest(IMAGE, LABEL), image_size=(4, 4), columns=FeatureOptions(extra_features=(name,)))
    with pytest.raises(FeatureError, match=r"'image/size'.*image/height"):
        select_fields(
            manifest(IMAGE, HEIGHT), image_size=(4, 4), columns=FeatureOptions(extra_features=("image/size",))
        )


def test_fields_have_their_sizes_in_memory() -> None:
    fields = select_fields(
        manifest(IMAGE, LABEL, CLASS_TEXT),
        image_size=(4, 5),
        columns=FeatureOptions(extra_features=("image/class/text",)),
    )
    assert [field.bytes for field in fields.all] == [60, None, 4]
