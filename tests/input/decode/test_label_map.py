"""Label maps through make_input_fn, next to their pictures, compared with numpy and Pillow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.label_maps import PALETTE, png_of
from tpudata import (
    CentreCrop,
    CutMix,
    DatasetError,
    FeatureError,
    Images,
    MixUp,
    Normalize,
    RandAugment,
    TFRecordFiles,
    TrainCrop,
    UsageError,
    as_keras,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature

MAP, DEEP = "image/segmentation/class/encoded", "image/segmentation/instance/encoded"
CLASSES, INSTANCES = MAP.removesuffix("/encoded"), DEEP.removesuffix("/encoded")
LABEL = Feature("label", "int64", "int64", num_classes=5)
RECORDS = 12


@dataclasses.dataclass(frozen=True)
class Scenes:
    """Pictures whose red is their class map's value times 5, and a map of 16 bits that is the class times 257 + 3."""

    path: str
    classes: list[npt.NDArray[np.uint8]]
    files: list[dict[str, Any]]


def features_of(shape: tuple[int | None, int | None]) -> list[Feature]:
    return [
        Feature("image/encoded", "bytes", "uint8", (*shape, 3), "image"),
        Feature(MAP, "bytes", "uint8", (*shape, 1), "label_map"),
        Feature(DEEP, "bytes", "uint16", (*shape, 1), "label_map"),
        LABEL,
    ]


def picture(classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.stack([classes * 5, 255 - classes, classes * 0 + 7], axis=-1).astype(np.uint8)


def deep(classes: Any) -> Any:
    return np.where(classes == 255, 255, classes.astype(np.int32) * 257 + 3)


def write_scenes(folder: Path, shape: tuple[int | None, int | None] = (None, None)) -> Scenes:
    rng = np.random.default_rng(7)
    sizes = [(shape[0] or 30 + i, shape[1] or 41 - 2 * i) for i in range(RECORDS)]
    classes = [rng.integers(0, 51, size, dtype=np.uint8) for size in sizes]
    records: list[dict[str, Any]] = [
        {
            "image/encoded": encode_image(picture(found)),
            MAP: png_of(found),
            DEEP: png_of(deep(found), 16),
            "label": number % 5,
        }
        for number, found in enumerate(classes)
    ]
    path = write_dataset(str(folder), {"train": records}, features_of(shape), layout="examples", shards=2)
    return Scenes(path, classes, records)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """12 scenes of several sizes."""
    return write_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """12 scenes of 32 x 40."""
    return write_scenes(tmp_path_factory.mktemp("alike"), (32, 40))


def batch_of(data: Any, batch_size: int = RECORDS, **options: Any) -> Any:
    split = () if isinstance(data, TFRecordFiles) else ("train",)
    input_fn = make_input_fn(data, *split, **{"training": False, **options})
    return next(iter(as_numpy(input_fn, batch_size)))


def test_decodes_every_value_as_it_is_stored(alike: Scenes, tmp_path: Path) -> None:
    want = np.stack(alike.classes)[..., None]
    ways: tuple[dict[str, Any], ...] = (
        {"images": Images(dtype="float32", normalize=Normalize.imagenet())},
        # Into the cache, and from it.
        {"cache": tmp_path},
        {"cache": tmp_path},
    )
    for options in ways:
        features, _ = batch_of(alike.path, **options)
        assert (features[CLASSES].dtype, features[INSTANCES].dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(features[CLASSES], want)
        np.testing.assert_array_equal(features[INSTANCES], deep(want))


def test_resizes_maps_to_the_nearest_pixel(scenes: Scenes) -> None:
    for size in ((17, 23), (64, 50)):
        features, _ = batch_of(scenes.path, images=Images(size=size, dtype="float32"))
        for row, classes in enumerate(scenes.classes):
            rows, columns = (
                ((np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)).astype(int)
                for old, new in zip(classes.shape, size, strict=True)
            )
            want = classes[rows][:, columns]
            np.testing.assert_array_equal(features[CLASSES][row, ..., 0], want)
            np.testing.assert_array_equal(features[INSTANCES][row, ..., 0], deep(want))


def test_crops_and_flips_maps_with_their_pictures(tmp_path: Path) -> None:
    # The ramps and the maps encode each pixel's position.
    records = []
    for number in range(12):
        y, x = np.mgrid[: 50 + number, : 85 - number]
        image = np.stack([y * 4, x * 3, y * 0], axis=-1).astype(np.uint8)
        file_format = "JPEG" if number % 3 == 0 else "PNG"
        records.append({"image/encoded": encode_image(image, file_format), MAP: png_of(y * 100 + x, 16)})
    features = [
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        Feature(MAP, "bytes", "uint16", (None, None, 1), "label_map"),
    ]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="examples", shards=1)
    flips = set()
    ways: tuple[tuple[Any, bool], ...] = (
        (TrainCrop(20), True),
        (TrainCrop(90, area=(0.5, 1.0)), False),
        (CentreCrop(20), False),
    )
    for crop, cache in ways:
        training = isinstance(crop, TrainCrop)
        images = Images(crop=crop, dtype="float32")
        got = batch_of(path, 12, training=training, seed=3, images=images, cache=cache)
        places = got[CLASSES][..., 0]
        assert places.dtype == np.int32
        misses = []
        for shown, found in zip(got["image"] * 255, places, strict=True):
            rows, columns = found // 100, found % 100
            misses.append(max(np.abs(shown[..., 0] / 4 - rows).max(), np.abs(shown[..., 1] / 3 - columns).max()))
            flips.add(bool(columns[0, 0] > columns[0, -1]))
        # Each pixel of the map is the one nearest to where the picture was sampled; a JPEG's values are a few off.
        assert sum(miss <= 0.51 for miss in misses) >= 8
        assert max(misses) < 2.5
    assert flips == {True, False}


def test_cutmix_and_transpose_move_maps_with_their_pictures(alike: Scenes) -> None:
    unlabelled = TFRecordFiles(f"{alike.path}/train-*", features_of((32, 40))[:3])
    for data, transpose in ((alike.path, None), (unlabelled, "HWCN")):
        images = Images(mix=CutMix(), transpose=transpose)
        mixed = batch_of(data, training=True, seed=2, shuffle=RECORDS, images=images)
        if data is not unlabelled:
            mixed, shares = mixed
            assert shares.shape == (RECORDS, 5)
            assert (shares.max(axis=1) < 0.9).sum() >= 4
        else:
            mixed = {name: value.transpose(3, 0, 1, 2) for name, value in mixed.items()}
        # The red of each pixel is its class times 5, wherever the pixel is from.
        np.testing.assert_array_equal(mixed["image"][..., :1], mixed[CLASSES] * np.uint8(5))
        np.testing.assert_array_equal(mixed[INSTANCES], deep(mixed[CLASSES]))


@pytest.mark.matrix
def test_all_steps_keep_maps_consistent_integers(scenes: Scenes) -> None:
    images = Images(
        crop=TrainCrop(16),
        augment=RandAugment(1, map_fill=254),
        mix=CutMix(),
        normalize=Normalize.imagenet(),
        dtype="float16",
    )
    features, shares = batch_of(scenes.path, training=True, seed=1, images=images)
    assert features["image"].dtype == np.float16
    assert features[CLASSES].dtype == np.uint8
    known = features[CLASSES] != 254
    assert 0.5 < known.mean() < 1
    np.testing.assert_array_equal(features[INSTANCES][known], deep(features[CLASSES])[known])
    assert (features[INSTANCES][~known] == 254).all()
    assert shares.shape == (RECORDS, 5)


def test_a_batch_transform_makes_maps_the_labels_of_keras(scenes: Scenes) -> None:
    unlabelled = TFRecordFiles(f"{scenes.path}/train-*", features_of((None, None))[:2])
    input_fn = make_input_fn(
        unlabelled,
        training=False,
        images=Images(crop=CentreCrop(8), dtype="float32"),
        batch_transform=lambda features: ({"image": features["image"]}, features[CLASSES]),
    )
    batches = list(as_keras(input_fn, 5).as_numpy_iterator())
    assert [y.shape for _, y in batches] == [(5, 8, 8, 1), (5, 8, 8, 1), (2, 8, 8, 1)]
    assert all(y.dtype == np.uint8 and set(x) == {"image"} for x, y in batches)


WRONG = {
    "palette": png_of([[1, 2], [3, 4]], 8, PALETTE),
    "deep": png_of([[1, 2], [3, 400]], 16),
    "shallow": png_of([[1, 2], [3, 0]], 2),
    "jpeg": encode_image(np.zeros((2, 2, 1), np.uint8), "JPEG"),
    "colour": encode_image(np.zeros((2, 2, 3), np.uint8)),
    "short": b"\x89PNG",
}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    "kind", ["palette", "deep", *(pytest.param(k, marks=pytest.mark.matrix) for k in list(WRONG)[2:])]
)
def test_rejects_files_whose_values_would_change(kind: str, at: int, tmp_path: Path) -> None:
    data = [png_of([[1, 2], [3, 4]])] * 3
    data[at] = WRONG[kind]
    feature = Feature(MAP, "bytes", "uint8", (2, 2, 1), "label_map")
    path = write_dataset(
        str(tmp_path), {"train": [{MAP: item} for item in data]}, [feature], layout="examples", shards=1
    )
    for source in (path, TFRecordFiles(f"{path}/train-*", [feature])):
        with pytest.raises(FeatureError, match=rf"eature '?{MAP}'?:? .*PNG of 8 bits, grey"):
            batch_of(source, 3)


@pytest.mark.parametrize(("dtype", "bits"), [("uint16", 16), pytest.param("uint8", 8, marks=pytest.mark.matrix)])
def test_rejects_maps_that_are_damaged_or_differ_in_size_from_the_schema(dtype: str, bits: int, tmp_path: Path) -> None:
    whole = png_of([[1, 2], [3, 4]], bits)
    features = [Feature(MAP, "bytes", dtype, (2, 2, 1), "label_map")]
    for number, (odd, error, message) in enumerate(
        (
            (png_of([[1, 2]], bits), FeatureError, r"is \[1,2,1\], and its feature says \[2,2,1\]"),
            (whole.replace(b"IDAT\x78", b"IDAT\x79"), DatasetError, "does not decode: Invalid PNG data"),
        )
    ):
        records = [{MAP: whole}, {MAP: odd}]
        path = write_dataset(str(tmp_path / str(number)), {"train": records}, features, layout="examples", shards=1)
        with pytest.raises(error, match=message):
            batch_of(path, 2)


def test_rejects_options_that_do_not_fit_maps(alike: Scenes, tmp_path: Path) -> None:
    for images, message in (
        (Images(mix=MixUp()), f"mix=MixUp: classes have no mean, and '{CLASSES}' is a label map"),
        (Images(augment=RandAugment(map_fill=256)), "map_fill: too large for label maps of uint8"),
    ):
        with pytest.raises(UsageError, match=message):
            make_input_fn(alike.path, "train", training=True, images=images)
    for fill in (-1, 1 << 16, 1.5, True):
        with pytest.raises(UsageError, match=r"RandAugment\.map_fill: invalid value"):
            RandAugment(map_fill=fill)  # type: ignore[arg-type]
    features = [
        Feature("image_raw", "bytes", "uint8", (2, 2, 3), "raw"),
        Feature(MAP, "bytes", "uint8", (2, 2, 1), "label_map"),
    ]
    record = {"image_raw": bytes(12), MAP: png_of([[1, 2], [3, 4]])}
    path = write_dataset(str(tmp_path / "raw"), {"train": [record]}, features, layout="examples", shards=1)
    with pytest.raises(UsageError, match="no encoded images to resize"):
        make_input_fn(path, "train", training=True, images=Images(size=(4, 4)))


def test_rejects_per_pixel_values_that_would_not_move(tmp_path: Path) -> None:
    image, other = Feature("image_raw", "bytes", "uint8", (2, 3, 3), "raw"), Feature("mask", "int64", "int64", (2, 3))
    record = {"image_raw": bytes(18), "mask": [1, 2, 3, 4, 5, 6]}
    path = write_dataset(str(tmp_path), {"train": [record] * 2}, [image, other], layout="examples", shards=1)
    for images, name in ((Images(crop=TrainCrop(2)), "crop"), (Images(augment=RandAugment()), "augment")):
        with pytest.raises(
            UsageError, match=f"{name}: 'mask' has a value for each pixel of 'image'.* expected encoding label_map"
        ):
            make_input_fn(path, "train", training=True, images=images)
    batch = batch_of(path, 2, images=Images(dtype="float32"))
    assert batch["mask"].tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2


def test_rejects_maps_of_another_size_than_their_picture(tmp_path: Path) -> None:
    record = {
        "image/encoded": encode_image(np.zeros((6, 8, 3), np.uint8)),
        MAP: png_of(np.zeros((3, 4), int)),
        "label": 1,
    }
    for shape, size in (((None, None), (None, None)), ((6, 8), (3, 4))):
        image, label_map = features_of(shape)[0], Feature(MAP, "bytes", "uint8", (*size, 1), "label_map")
        folder = str(tmp_path / str(size[0]))
        path = write_dataset(folder, {"train": [record] * 2}, [image, label_map, LABEL], layout="examples", shards=1)
        with pytest.raises(FeatureError, match="a label map does not have the size of its image"):
            batch_of(path, 2, images=Images(crop=CentreCrop(4)))
        if size[0] is not None:
            with pytest.raises(UsageError, match=r"is \(3, 4\), and the image \(6, 8\)"):
                batch_of(path, 2, training=True, images=Images(augment=RandAugment()))
        # Without a crop, each is resized to the same size.
        features, _ = batch_of(path, 2, images=Images(size=(6, 8)))
        assert features[CLASSES].shape == (2, 6, 8, 1)


def test_rejects_a_transform_that_renames_a_map_before_mixing(alike: Scenes) -> None:
    def moved(features: Any, labels: Any) -> Any:
        return {"image": features["image"], INSTANCES: features[INSTANCES], "map": features[CLASSES]}, labels

    input_fn = make_input_fn(alike.path, "train", training=True, transform=moved, images=Images(mix=CutMix()))
    with pytest.raises(FeatureError, match=f"'{CLASSES}': mix and transpose take"):
        input_fn({"batch_size": 4})


def test_resizes_maps_without_images_and_keeps_names_of_extra_features(scenes: Scenes, tmp_path: Path) -> None:
    features, _ = batch_of(scenes.path, features=CLASSES, weights="sample_weight", images=Images(size=(9, 9)))[:2]
    assert features.shape == (RECORDS, 9, 9, 1)
    with pytest.raises(UsageError, match="dtype=float32: it is of images"):
        batch_of(scenes.path, features=CLASSES, images=Images(size=(9, 9), dtype="float32"))
    records = [{name: record[name] for name in ("image/encoded", MAP)} for record in scenes.files]
    path = write_dataset(str(tmp_path), {"train": records}, features_of((None, None))[:2], layout="imagenet", shards=1)
    found = batch_of(path, images=Images(size=(9, 9)), extra_features=(MAP,))
    np.testing.assert_array_equal(found[MAP], features)
    assert "image" in found
