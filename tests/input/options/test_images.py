"""Options of images through make_input_fn: their effects on the pictures, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written, encode_image, write_dataset, write_images
from tests.input.flat_options import grouped
from tpudata import (
    CentreCrop,
    CutMix,
    FeatureError,
    FixedLengthRecordFiles,
    Images,
    MixUp,
    Normalize,
    RandAugment,
    TrainCrop,
    UsageError,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature

MEAN, STD = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
TRAIN: dict[str, Any] = {"training": True, "seed": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """24 smooth colour pictures of different sizes."""
    rng = np.random.default_rng(1)
    images = [
        np.kron(rng.integers(0, 256, (5 + i % 4, 6 + i % 3, 3)), np.ones((8, 8, 1), int)).astype(np.uint8)
        for i in range(24)
    ]
    path = str(tmp_path_factory.mktemp("photos"))
    labels = [i % 10 for i in range(24)]
    return write_images(path, {"train": images}, {"train": labels}, shape=(None, None, 3), shards=2)


@pytest.fixture(scope="module")
def raw_photos(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """24 decoded pictures of 32 x 40, which are small enough to be kept so."""
    images = [np.random.default_rng(i).integers(0, 256, (32, 40, 3), dtype=np.uint8) for i in range(24)]
    path = str(tmp_path_factory.mktemp("raw_photos"))
    labels = [i % 10 for i in range(24)]
    return write_images(path, {"train": images}, {"train": labels}, shape=(32, 40, 3), layout="raw", shards=2)


def images_of(path: str, batch_size: int = 12, steps: int = 2, **options: Any) -> Any:
    """[steps, batch, ...] of images, as float where they are."""
    dataset = make_input_fn(path, "train", **options)({"batch_size": batch_size}).take(steps)
    return np.stack([features["image"].astype(np.float32) for features, _ in dataset.as_numpy_iterator()])


@pytest.mark.parametrize(
    ("data", "cache"),
    [
        *(("photos", False), ("raw_photos", True)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in (("photos", True), ("raw_photos", False))),
    ],
)
def test_the_evaluation_crop_is_central(data: str, cache: bool, request: pytest.FixtureRequest) -> None:
    written: Written = request.getfixturevalue(data)
    (got,) = images_of(written.path, 24, training=False, images=Images(crop=CentreCrop(16, fraction=1.0)), cache=cache)
    for image, source in zip(got, written.images["train"], strict=True):
        height, width, _ = source.shape
        side = min(height, width)
        top, left = (height - side + 1) // 2, (width - side + 1) // 2
        want = tf.image.resize(source[top : top + side, left : left + side], (16, 16)).numpy()
        np.testing.assert_allclose(image, want, atol=0.51)


def test_cropped_images_are_normalized_without_rounding(photos: Written) -> None:
    rounded = images_of(photos.path, **TRAIN, images=Images(crop=TrainCrop(16)))
    floats = images_of(
        photos.path, **TRAIN, images=Images(crop=TrainCrop(16), normalize=Normalize.imagenet(), dtype="float32")
    )
    values = (floats * STD + MEAN) * 255
    assert np.abs(values - rounded).max() < 0.51
    assert np.abs(values - np.round(values)).max() > 0.1
    (spec, _) = make_input_fn(photos.path, "train", **TRAIN, images=Images(crop=TrainCrop(16), dtype="bfloat16"))(
        {"batch_size": 4}
    ).element_spec
    assert spec["image"] == tf.TensorSpec((4, 16, 16, 3), tf.bfloat16)
    halves = images_of(
        photos.path,
        **TRAIN,
        images=Images(crop=TrainCrop(16), normalize=Normalize.imagenet(), dtype="bfloat16"),
    )
    np.testing.assert_allclose(halves, floats, rtol=2**-8)


def test_whole_images_are_normalized(raw_photos: Written) -> None:
    options: Any = {"images": Images(normalize=Normalize((0.5,), (0.25,)), dtype="float32")}
    (got,) = images_of(raw_photos.path, 24, training=False, **options)
    want = (np.stack(raw_photos.images["train"]) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("integer", [np.uint8, np.uint64])
def test_integers_of_numpy_give_the_same_images(photos: Written, integer: Any) -> None:
    def options(number: Any) -> list[Images]:
        augment = RandAugment(layers=number(2), map_fill=number(9))
        crop = TrainCrop(number(100), attempts=number(9))
        return [Images(size=(number(90), number(80))), Images(crop=crop), Images(crop=crop, augment=augment)]

    for given, expected in zip(options(integer), options(int), strict=True):
        np.testing.assert_array_equal(
            images_of(photos.path, images=given, **TRAIN), images_of(photos.path, images=expected, **TRAIN)
        )


def test_crops_augmentation_and_mixing_differ_for_every_record_and_epoch(photos: Written) -> None:
    plain = images_of(photos.path, steps=4, **TRAIN, images=Images(crop=TrainCrop(16)))
    assert len({image.tobytes() for image in plain.reshape(48, -1)}) == 48
    augmented = images_of(photos.path, steps=4, **TRAIN, images=Images(crop=TrainCrop(16), augment=RandAugment(1)))
    # The same crops, most of them changed.
    assert 24 < (augmented != plain).reshape(48, -1).any(axis=1).sum() <= 48
    mixed = images_of(photos.path, steps=4, **TRAIN, images=Images(crop=TrainCrop(16), mix=MixUp(1.0)))
    assert (mixed != plain).reshape(48, -1).any(axis=1).sum() > 24


ALL: dict[str, Any] = {
    "crop": TrainCrop(16),
    "augment": RandAugment(1),
    "normalize": Normalize.imagenet(),
    "mix": MixUp(0.2),
    "transpose": "HWCN",
}


@pytest.mark.parametrize(
    ("options", "cache", "window"),
    [
        (ALL, False, 5),
        ({"crop": TrainCrop(16), "mix": CutMix()}, True, None),
        ({"crop": TrainCrop(16)}, "disk", 5),
        pytest.param(ALL, False, None, marks=pytest.mark.matrix),
        pytest.param({"crop": TrainCrop(16), "mix": CutMix()}, True, 5, marks=pytest.mark.matrix),
    ],
)
def test_starting_at_any_step_gives_the_same_bytes(
    photos: Written, options: dict[str, Any], cache: Any, window: int | None, tmp_path: Path
) -> None:
    def batches(start: int, steps: int) -> list[bytes]:
        fed = {**TRAIN, **grouped({**options, "dtype": "bfloat16"}), "shuffle": window}
        input_fn = make_input_fn(photos.path, "train", **fed, cache=tmp_path if cache == "disk" else cache)
        dataset = input_fn({"batch_size": 8}, start_step=start).take(steps)
        return [f["image"].tobytes() + labels.tobytes() for f, labels in dataset.as_numpy_iterator()]

    whole = batches(0, 8)
    assert len(set(whole)) == 8
    assert batches(5, 3) == whole[5:]


def test_crops_and_augmentation_do_not_depend_on_the_number_of_hosts(photos: Written) -> None:
    input_fn = make_input_fn(photos.path, "train", **TRAIN, images=Images(crop=TrainCrop(16), augment=RandAugment(1)))

    def batches(hosts: int, host: int) -> Any:
        context = tf.distribute.InputContext(hosts, host, hosts)
        dataset = input_fn({"batch_size": 8 // hosts}, context).take(4)
        return np.stack([features["image"] for features, _ in dataset.as_numpy_iterator()])

    # The second host shows a difference: the first host's rows begin with the same number.
    np.testing.assert_array_equal(batches(2, 1), batches(1, 0)[:, 4:])


def test_mixed_labels_equal_the_shares_of_pixels(raw_photos: Written) -> None:
    # Each pixel is the picture's label, so a mixed picture shows its sources.
    def transform(features: Any, labels: Any) -> Any:
        return {"image": tf.zeros((8, 8, 1)) + tf.cast(labels, tf.float32)}, labels

    input_fn = make_input_fn(raw_photos.path, "train", **TRAIN, transform=transform, images=Images(mix=CutMix()))
    for features, shares in input_fn({"batch_size": 24}).take(3).as_numpy_iterator():
        assert shares.shape == (24, 10)
        assert shares.dtype == np.float32
        for image, share in zip(features["image"], shares, strict=True):
            want = np.bincount(image.astype(int).ravel(), minlength=10) / 64
            np.testing.assert_allclose(share, want, atol=1e-6)


def test_accepts_shares_as_labels_of_transform(raw_photos: Written) -> None:
    def soft(features: Any, labels: Any) -> Any:
        return features, tf.one_hot(labels, 12)

    input_fn = make_input_fn(raw_photos.path, "train", **TRAIN, transform=soft, images=Images(mix=MixUp()))
    _, shares = next(input_fn({"batch_size": 24}).as_numpy_iterator())
    assert shares.shape == (24, 12)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("bare", "training"),
    [
        *((False, False), (True, True)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((False, True), (True, False))),
    ],
)
def test_transpose_puts_the_batch_axis_last(raw_photos: Written, bare: bool, training: bool) -> None:
    options: dict[str, Any] = {"training": training, "features": "image" if bare else None}
    if training:
        options["seed"] = 3
    changes: tuple[dict[str, Any], ...] = ({}, {"images": Images(transpose="HWCN")})
    plain, turned = (
        next(make_input_fn(raw_photos.path, "train", **options, **more)({"batch_size": 12}).as_numpy_iterator())[0]
        for more in changes
    )
    if not bare:
        assert sorted(turned) == (["image"] if training else ["image", "weights"])
        plain, turned = plain["image"], turned["image"]
    np.testing.assert_array_equal(turned, plain.transpose(1, 2, 3, 0))


def test_crops_a_raw_image_as_an_encoded_one(raw_photos: Written, tmp_path: Path) -> None:
    encoded = write_images(
        str(tmp_path), {"train": raw_photos.images["train"]}, raw_photos.labels, shape=(32, 40, 3), shards=2
    )
    options = {**TRAIN, "images": Images(crop=TrainCrop(16)), "shuffle": 24}
    np.testing.assert_array_equal(images_of(raw_photos.path, **options), images_of(encoded.path, **options))


def test_crops_and_whole_images_have_separate_caches(tmp_path: Path, digits: Written) -> None:
    for _ in range(2):
        (whole,) = images_of(digits.path, 300, training=False, cache=tmp_path)
        (crops,) = images_of(
            digits.path, 300, training=False, cache=tmp_path, images=Images(crop=CentreCrop(4, fraction=0.5))
        )
        assert whole.shape[1:] == (8, 8, 1)
        np.testing.assert_array_equal(crops, whole[:, 2:6, 2:6])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 224}, r"crop: invalid value \(got 224, expected None or tpudata.TrainCrop or tpudata.CentreCrop\)"),
        ({"augment": True}, r"augment: .*got True.*tpudata.RandAugment\(\)"),
        ({"normalize": "imagenet"}, r"normalize: .*got 'imagenet'.*tpudata.Normalize.imagenet\(\)"),
        ({"mix": 0.2}, r"mix: .*got 0.2.*tpudata.MixUp or tpudata.CutMix"),
        ({"normalize": Normalize.imagenet()}, r'normalize: it gives floats.*dtype="bfloat16"'),
        ({"transpose": "HWC"}, "transpose='HWC': .*such as 'HWCN'"),
        ({"transpose": 3}, "transpose=3"),
        ({"training": False, "crop": TrainCrop(8)}, r"crop=TrainCrop: .*crop=CentreCrop\(8\)"),
        ({"training": False, "augment": RandAugment()}, "augment: it is for training"),
        ({"training": False, "mix": MixUp()}, "mix: it is for training"),
        ({"crop": TrainCrop(8), "size": (4, 4)}, r"size=\(4, 4\): crop="),
        ({"augment": RandAugment()}, "augment: it is for colour images, and these have 1 channels"),
        (
            {"normalize": Normalize.imagenet(), "dtype": "float32"},
            "normalize has 3 means, and 'image' has 1 channels",
        ),
    ],
)
def test_rejects_options_that_do_not_fit(digits: Written, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_input_fn(digits.path, "train", **{"training": True, **grouped(options)})


def test_rejects_image_options_without_one_image_and_mixing_without_classes(tmp_path: Path) -> None:
    text = Feature("text", "bytes", "string")
    path = write_dataset(str(tmp_path / "text"), {"train": [{"text": "a"}]}, [text], layout="text", shards=1)
    with pytest.raises(UsageError, match=r"crop: it is for images, .* and the features have none"):
        make_input_fn(path, "train", training=True, images=Images(crop=TrainCrop(8)))
    pixels = bytes(12)
    pair = [Feature(name, "bytes", "uint8", (2, 2, 3), "raw") for name in ("left_raw", "right_raw")]
    features = [*pair, Feature("label", "int64", "int64")]
    records = [{"left_raw": pixels, "right_raw": pixels, "label": 1}]
    path = write_dataset(str(tmp_path / "pair"), {"train": records}, features, layout="pair", shards=1)
    with pytest.raises(UsageError, match=r"augment: .* the features have 2 \(left, right\)\. Name one with features="):
        make_input_fn(path, "train", training=True, images=Images(augment=RandAugment()))
    with pytest.raises(UsageError, match=r"it mixes labels, too .got 'label', expected one class"):
        make_input_fn(path, "train", training=True, features="left", images=Images(mix=MixUp()))


def test_both_images_of_a_pair_get_the_same_crop_and_scaling(tmp_path: Path) -> None:
    features = [Feature(name, "bytes", "uint8", (None, None, 3), "image") for name in ("left/encoded", "right/encoded")]
    pictures = [
        np.kron(rng.integers(0, 256, (4, 5, 3)), np.ones((9, 9 + row, 1), int)).astype(np.uint8)
        for row, rng in enumerate(map(np.random.default_rng, range(6)))
    ]
    files = [(encode_image(pixels), encode_image(255 - pixels)) for pixels in pictures]
    records = [{"left/encoded": left, "right/encoded": right} for left, right in files]
    path = write_dataset(str(tmp_path / "pairs"), {"train": records}, features, layout="pairs", shards=1)
    for crop, train in ((TrainCrop(16), TRAIN), (CentreCrop(16), {"training": False})):
        scale = Normalize((0.5, 0.25, 0.0), (0.5, 1.0, 2.0))
        images = Images(crop=crop, dtype="float32", normalize=scale, transpose="HWCN")
        dataset = make_input_fn(path, "train", images=images, **train)({"batch_size": 6}).take(4)
        for batch in dataset.as_numpy_iterator():
            left, right = (
                (batch[name] * np.array(scale.std)[:, None] + np.array(scale.mean)[:, None]) * 255
                for name in ("left", "right")
            )
            assert left.shape == (16, 16, 3, 6)
            np.testing.assert_allclose(left, 255 - right, atol=0.01)
    records[0]["right/encoded"] = encode_image(pictures[1])
    path = write_dataset(str(tmp_path / "odd"), {"train": records}, features, layout="pairs", shards=1)
    input_fn = make_input_fn(path, "train", training=False, images=Images(crop=CentreCrop(16)))
    with pytest.raises(FeatureError, match=r"right/encoded: a record has images of two sizes"):
        list(as_numpy(input_fn, 6))


def test_rejects_crop_and_transpose_for_channels_first(tmp_path: Path) -> None:
    path = tmp_path / "cifar"
    path.write_bytes(bytes(2 * 3073))
    files = FixedLengthRecordFiles(str(path), [("label", "u1"), ("image", "u1", (3, 32, 32))])
    for images in (Images(crop=CentreCrop(8)), Images(transpose="HWCN")):
        with pytest.raises(UsageError, match=r"'image' of shape \(3, 32, 32\) has its channels first"):
            make_input_fn(files, training=False, images=images)
    # Scaling does not depend on the order.
    features, _ = next(iter(make_input_fn(files, training=False, images=Images(dtype="float32"))({"batch_size": 2})))
    assert features["image"].shape == (2, 3, 32, 32)


def test_mixing_and_transposing_require_an_image_after_transform(raw_photos: Written) -> None:
    def flat(features: Any, labels: Any) -> Any:
        return {"image": tf.reshape(features["image"], [-1])}, labels

    changes: tuple[dict[str, Any], ...] = ({"images": Images(mix=MixUp())}, {"images": Images(transpose="HWCN")})
    for options in changes:
        input_fn = make_input_fn(raw_photos.path, "train", training=True, transform=flat, **options)
        with pytest.raises(Exception, match=r"'image': mix and transpose take images .*after transform"):
            input_fn({"batch_size": 4})


def test_mixing_requires_classes_or_shares(raw_photos: Written) -> None:
    def halves(features: Any, labels: Any) -> Any:
        return features, tf.cast(labels, tf.float32) / 2

    input_fn = make_input_fn(raw_photos.path, "train", training=True, images=Images(mix=MixUp()), transform=halves)
    with pytest.raises(FeatureError, match=r"mix: labels are a tensor of classes, integers \[batch\], of shares"):
        input_fn({"batch_size": 4})


def test_scales_only_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    beside = {"coarse": (), "many": (7,), "grid": (5, 4)}
    values = {name: rng.integers(0, 256, (6, *shape), dtype=np.uint8) for name, shape in beside.items()}
    features = [
        Feature("image_raw", "bytes", "uint8", (4, 5, 3), "raw"),
        *(Feature(name, "bytes", "uint8", shape, "raw") for name, shape in beside.items()),
    ]
    records = [
        {"image_raw": pixels[i].tobytes(), **{name: value[i].tobytes() for name, value in values.items()}}
        for i in range(6)
    ]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="examples", shards=1)
    scaled = pixels.astype(np.float32) / np.float32(255)
    for images, want in (
        (Images(dtype="float32"), scaled),
        (Images(dtype="float32", normalize=Normalize((0.5,), (0.25,))), (scaled - 0.5) / 0.25),
        (Images(dtype="float32", crop=CentreCrop(4, fraction=1.0)), scaled[:, :, 1:]),
    ):
        input_fn = make_input_fn(path, "train", training=False, images=images)
        (batch,) = input_fn({"batch_size": 6}).as_numpy_iterator()
        np.testing.assert_allclose(batch["image"], want, atol=1e-5)
        for name, value in values.items():
            assert batch[name].dtype == np.uint8
            np.testing.assert_array_equal(batch[name], value)
    with pytest.raises(UsageError, match=r"dtype=float32: it is of images.*none"):
        make_input_fn(path, "train", training=False, features="many", images=Images(dtype="float32"))
