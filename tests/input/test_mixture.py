"""Mixtures of inputs: shares, hosts, restarts."""

from __future__ import annotations

import collections
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written
from tpudata import Images, Mixture, MixUp, UsageError, as_keras, as_numpy, make_input_fn


def digits_of(written: Written, split: str, **options: Any) -> Any:
    """Return an input of images, labels and the number of the split, 0 or 1."""

    def transform(features: Any, labels: Any) -> Any:
        return {**features, "split": tf.constant(int(split == "test"))}, labels

    return make_input_fn(written.path, split, training=True, seed=1, transform=transform, **options)


@pytest.fixture(scope="module")
def mixture(raw_digits: Written) -> Mixture:
    return Mixture([(digits_of(raw_digits, "train"), 3), (digits_of(raw_digits, "test"), 1)])


def taken(mixture: Any, batch_size: int, steps: int, **options: Any) -> list[Any]:
    return list(itertools.islice(as_numpy(mixture({"batch_size": batch_size}, **options)), steps))


def images(batches: list[Any]) -> list[bytes]:
    return [image.tobytes() for features, _ in batches for image in features["image"]]


def test_batches_hold_each_input_by_its_weight(mixture: Mixture) -> None:
    for features, labels in taken(mixture, 32, 4):
        assert features["image"].shape == (32, 8, 8, 1)
        assert labels.shape == (32,)
        # Of every 16 neighbouring rows, 12 are of one input and 4 of the other.
        assert features["split"].reshape(2, 16).sum(axis=1).tolist() == [4, 4]


def test_every_input_goes_through_its_own_epochs(raw_digits: Written, mixture: Mixture) -> None:
    batches = taken(mixture, 20, 60)  # 900 of 1,200 rows are of one input, which is three epochs, and 300 of the other.
    split = np.concatenate([features["split"] for features, _ in batches])
    found = np.array(images(batches), dtype=object)
    for number, name, rows in ((0, "train", 900), (1, "test", 300)):
        stored = collections.Counter(image.tobytes() for image in raw_digits.images[name])
        fed = collections.Counter(found[split == number])
        assert fed.total() == rows
        epochs, rest = divmod(rows, stored.total())
        assert all(0 <= fed[image] - epochs * count <= (count if rest else 0) for image, count in stored.items())


def test_hosts_share_the_same_batches_from_any_step(mixture: Mixture) -> None:
    whole = taken(mixture, 64, 5)[2:]
    # Of 64 rows, a host has fewer than a piece.
    part = taken(mixture, 64, 3, start_step=2, host_index=13, host_count=32)
    for (features, labels), (all_features, all_labels) in zip(part, whole, strict=True):
        np.testing.assert_array_equal(features["image"], all_features["image"][26:28])
        np.testing.assert_array_equal(labels, all_labels[26:28])


def test_replicas_get_the_rows_of_a_host(mixture: Mixture) -> None:
    whole = images(taken(mixture, 48, 3))
    context = tf.distribute.InputContext(1, 0, 8)
    batches = taken(mixture, 6, 24, input_context=context)
    assert {features["image"].shape[0] for features, _ in batches} == {6}
    assert images(batches) == whole


def test_indivisible_batches_come_from_one_input_each(mixture: Mixture) -> None:
    splits = [set(features["split"].tolist()) for features, _ in taken(mixture, 17, 8)]
    assert all(len(split) == 1 for split in splits)
    assert sum(split == {1} for split in splits) == 2


def test_mixtures_of_mixtures_multiply_their_shares(raw_digits: Written, mixture: Mixture) -> None:
    nested = Mixture([(mixture, 0.5), (digits_of(raw_digits, "test"), 0.5)])
    whole = taken(nested, 64, 16)
    assert np.concatenate([features["split"] for features, _ in whole]).mean() == 0.5 + 0.5 * 0.25
    assert images(taken(nested, 64, 3, start_step=4)) == images(whole[4:7])


def test_as_keras_accepts_a_mixture(mixture: Mixture) -> None:
    features, labels = next(iter(as_keras(mixture, 32)))
    assert sorted(features) == ["image", "split"]
    assert labels.shape == (32,)


def test_rejects_inputs_that_are_not_pairs_with_a_weight(raw_digits: Written) -> None:
    good = digits_of(raw_digits, "train")
    held_out = make_input_fn(raw_digits.path, "test", training=False)
    ends = digits_of(raw_digits, "test", num_epochs=1)
    wrong: list[tuple[Any, str]] = [
        ([], "there are no inputs"),
        (None, "inputs is None"),
        ([good], "input 0 is"),
        ([(good, 1), (held_out, 1)], r"input 1 is for evaluation \(expected training=True"),
        ([(ends, 1)], "input 0 ends after num_epochs"),
        *(([(good, weight)], "the weight of input 0 is") for weight in (0, -1, float("nan"), float("inf"), "1", True)),
    ]
    for inputs, message in wrong:
        with pytest.raises(UsageError, match=message):
            Mixture(inputs)


def test_rejects_inputs_with_batch_transform_or_mixing(raw_digits: Written) -> None:
    wrong: list[dict[str, Any]] = [
        {"images": Images(dtype="float32", mix=MixUp())},
        {"batch_transform": lambda x, y: (x, y)},
    ]
    for options in wrong:
        whole = make_input_fn(raw_digits.path, "train", training=True, seed=1, **options)
        with pytest.raises(UsageError, match="map the mixture's dataset"):
            Mixture([(whole, 1)])


def test_a_mixture_can_be_pickled_after_a_call(raw_digits: Written) -> None:
    mixture = Mixture([(make_input_fn(raw_digits.path, "train", training=True, seed=1), 1e308)])
    first = images(taken(mixture, 16, 2))
    assert images(taken(pickle.loads(pickle.dumps(mixture)), 16, 2)) == first


def test_rejects_inputs_with_different_elements(raw_digits: Written) -> None:
    good = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    floats = make_input_fn(raw_digits.path, "train", training=True, seed=1, images=Images(dtype="float32"))
    more = digits_of(raw_digits, "train")
    turned = make_input_fn(raw_digits.path, "train", training=True, seed=1, images=Images(transpose="HWCN"))
    for inputs, message in (
        ([(good, 1), (floats, 1)], r"input 1 gives float32 .* as element\[0\]\['image'\], and input 0 uint8"),
        ([(good, 1), (more, 1)], r"input 1 gives int32 .* as element\[0\]\['split'\], and input 0 nothing"),
        ([(turned, 1)], "Omit buckets and transpose"),
    ):
        with pytest.raises(UsageError, match=message):
            Mixture(inputs)({"batch_size": 32})
