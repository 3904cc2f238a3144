"""RandAugment compared with a loop over Pillow's operations, with the same drawn numbers.

Operations of given seeds are private: an input_fn draws the seeds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from PIL import Image, ImageFilter

from tests.input.pillow_ops import Pixels, pillow, plain_cutout
from tpudata import RandAugment, UsageError
from tpudata.input.image.augment import MOVES, OPERATIONS, augment_image

# At magnitude 10, where the sign is 1, on 56 x 112 pixels.
STRONGEST = {
    "rotate": 30,
    "posterize": 4,
    "solarize": 0,
    "solarize_add": 110,
    "color": 1.9,
    "contrast": 1.9,
    "brightness": 1.9,
    "sharpness": 1.9,
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 50,
    "translate_y": 25,
}
AROUND_ONE = ("color", "contrast", "brightness", "sharpness")
SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def picture() -> Pixels:
    noise = np.random.default_rng(1).integers(0, 256, (56, 112, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1)))


def plain(image: Pixels, numbers: npt.NDArray[np.float32]) -> tuple[Pixels, list[str]]:
    names = []
    for which, sign, y, x in numbers:
        name = list(OPERATIONS)[int(which * 16)]
        names.append(name)
        if name == "cutout":
            image = plain_cutout(image, 20, int(y * 56), int(x * 112))
            continue
        value = STRONGEST.get(name, 0)
        if sign >= 0.5 and name in AROUND_ONE:
            value = 2 - value
        elif sign >= 0.5 and name in SIGNED:
            value = -value
        image = pillow(name, image, value)
    return image, names


def augmented(image: Pixels, options: RandAugment, seeds: npt.NDArray[np.int32]) -> list[Pixels]:
    """The image, augmented with each of the seeds."""
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: augment_image(tf.constant(image), options, seed).image
    )
    return list(dataset.as_numpy_iterator())


def test_three_layers_equal_pillow() -> None:
    image, options = picture(), RandAugment(layers=3)
    seeds = np.array([(8, number) for number in range(80)], np.int32)
    met: Counter[str] = Counter()
    for seed, got in zip(seeds, augmented(image, options, seeds), strict=True):
        want, names = plain(image, tf.random.stateless_uniform([3, 4], seed).numpy())
        met.update(names)
        difference = np.abs(got.astype(int) - want.astype(int))
        # float32 may round a value the other way (by 1), which can cross a threshold of the next layer.
        assert (difference > 2).mean() < 0.001, names
    assert set(met) == set(OPERATIONS)


def test_draws_sixteen_operations_with_equal_chance() -> None:
    assert len(OPERATIONS) == 16
    numbers = tf.random.stateless_uniform([16000], (1, 1)).numpy()
    counts = np.bincount((numbers * 16).astype(int), minlength=16)
    assert np.abs(counts - 1000).max() < 150


def test_at_magnitude_0_only_operations_without_strength_change_an_image() -> None:
    image, options = picture(), RandAugment(layers=1, magnitude=0)
    seeds = np.array([(2, number) for number in range(60)], np.int32)
    changed = set()
    for seed, got in zip(seeds, augmented(image, options, seeds), strict=True):
        if (got != image).any():
            changed.update(plain(image, tf.random.stateless_uniform([1, 4], seed).numpy())[1])
    assert changed == {"autocontrast", "equalize", "invert"}


def test_half_the_magnitude_is_half_as_strong() -> None:
    image = picture()
    draw: Any = type("Drawn", (), {"sign": tf.constant(-1.0), "centre": tf.constant([0.5, 0.5])})
    for name, value in {"rotate": -15.0, "posterize": 6, "solarize": 128, "color": 0.55, "translate_x": -25}.items():
        got = OPERATIONS[name](tf.constant(image), 0.5, draw).numpy().astype(int)
        assert np.abs(got - pillow(name, image, value).astype(int)).max() <= 1, name


def test_the_seed_decides_the_image() -> None:
    seeds = np.array([[4, 2], [4, 2], [4, 3]], np.int32)
    one, again, other = augmented(picture(), RandAugment(), seeds)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_maps_move_with_the_image_and_keep_their_values() -> None:
    classes = np.random.default_rng(3).integers(0, 100, (56, 112, 1), dtype=np.uint8)
    image, deep = np.repeat(classes, 3, axis=2), classes.astype(np.int32) * 500
    options = RandAugment(layers=1, map_fill=255)
    seeds = np.array([(9, number) for number in range(60)], np.int32)
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: augment_image(tf.constant(image), options, seed, maps=[tf.constant(classes), tf.constant(deep)])[
            :2
        ]
    )
    met = set()
    for seed, (shown, (small, large)) in zip(seeds, dataset.as_numpy_iterator(), strict=True):
        ((chance, *_),) = tf.random.stateless_uniform([1, 4], seed).numpy()
        name = list(OPERATIONS)[int(chance * 16)]
        met.add(name)
        if name not in MOVES:
            np.testing.assert_array_equal(small, classes)
            np.testing.assert_array_equal(large, deep)
            continue
        outside = small == 255
        assert 0 < outside.mean() < 1, name
        # Values of the image are below 100, so the grey of its uncovered corners is not among them.
        np.testing.assert_array_equal(shown, np.repeat(np.where(outside, np.uint8(128), small), 3, axis=2))
        np.testing.assert_array_equal(large, np.where(outside, 255, small.astype(np.int32) * 500))
    assert met == set(OPERATIONS)


def test_augmented_images_have_static_shapes_in_a_dataset() -> None:
    dataset = tf.data.Dataset.from_tensor_slices([picture()]).map(
        lambda image: augment_image(image, RandAugment(), (1, 2)).image
    )
    assert dataset.element_spec == tf.TensorSpec((56, 112, 3), tf.uint8)


def test_a_graph_of_tensorflow_1_gives_the_same() -> None:
    image, seed = picture(), (4, 2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.from_tensors(image).map(lambda image: augment_image(image, RandAugment(), seed).image)
        got = session.run(tf.compat.v1.data.make_one_shot_iterator(dataset).get_next())
    np.testing.assert_array_equal(got, augment_image(tf.constant(image), RandAugment(), seed).image)


@pytest.mark.parametrize(
    "image",
    [tf.zeros((8, 8, 1), tf.uint8), tf.zeros((8, 8, 3), tf.float32), tf.zeros((2, 8, 8, 3), tf.uint8)],
)
def test_rejects_other_shapes_and_dtypes(image: tf.Tensor) -> None:
    with pytest.raises(UsageError, match="RandAugment takes uint8"):
        augment_image(image, RandAugment(), (1, 2))


@pytest.mark.parametrize(
    "options",
    [{"layers": 0}, {"layers": 1.5}, {"layers": True}, {"magnitude": -1}, {"magnitude": 10.5}, {"magnitude": "9"}],
)
def test_rejects_options_out_of_range_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"RandAugment.{next(iter(options))}: invalid value"):
        RandAugment(**options)
