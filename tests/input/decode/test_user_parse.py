"""The user's parse functions, on datasets and on files without a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written
from tests.input.flat_options import grouped
from tpudata import (
    FeatureError,
    FixedLengthRecordFiles,
    TextLineFiles,
    TFRecordFiles,
    UsageError,
    make_input_fn,
    open_dataset,
)
from tpudata.format import Feature


def parse(serialized: tf.Tensor) -> Any:
    """Parse a batch as older programs parse a record."""
    spec = {"image_raw": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    parsed = tf.io.parse_example(serialized, spec)
    image = tf.reshape(tf.io.decode_raw(parsed["image_raw"], tf.uint8), (-1, 64))
    return {"image": tf.cast(image, tf.float32) / 255 - 0.5}, parsed["label"]


def rows(dataset: tf.data.Dataset) -> list[tuple[bytes, int]]:
    return [
        (x.tobytes(), int(y))
        for f, labels in dataset.as_numpy_iterator()
        for x, y in zip(f["image"], labels, strict=True)
    ]


@pytest.mark.parametrize("batch_size", [25, 101, 2000])
def test_parse_decides_the_features_of_a_dataset(raw_digits: Written, batch_size: int) -> None:
    dataset = make_input_fn(raw_digits.path, "test", training=False, parse=parse)({"batch_size": batch_size})
    assert dataset.element_spec == (
        {"image": tf.TensorSpec([batch_size, 64]), "weights": tf.TensorSpec([batch_size])},
        tf.TensorSpec([batch_size], tf.int32),
    )
    want = np.stack(raw_digits.images["test"]).reshape(101, 64).astype(np.float32) / np.float32(255) - np.float32(0.5)
    found = rows(dataset)[:101]
    assert [label for _, label in found] == raw_digits.labels["test"]
    np.testing.assert_allclose(np.stack([np.frombuffer(x, np.float32) for x, _ in found]), want, atol=1e-7)


def test_parse_does_not_change_the_order(raw_digits: Written, tmp_path: Path) -> None:
    options: Any = {"training": True, "seed": 4}
    labels = [y.tolist() for _, y in make_input_fn(raw_digits.path, "train", **options)({"batch_size": 50}).take(9)
              .as_numpy_iterator()]  # fmt: skip
    for cache in (True, tmp_path):
        input_fn = make_input_fn(raw_digits.path, "train", parse=parse, cache=cache, **options)
        assert [y.tolist() for _, y in input_fn({"batch_size": 50}).take(9).as_numpy_iterator()] == labels
    dataset = open_dataset(raw_digits.path)
    paths = [dataset.shard_path(shard) for shard in dataset.manifest.split("train").shards]
    input_fn = make_input_fn(TFRecordFiles(paths), parse=parse, **options)
    assert [y.tolist() for _, y in input_fn({"batch_size": 50}).take(9).as_numpy_iterator()] == labels


def test_transform_gets_single_records_after_parse(raw_digits: Written) -> None:
    def transform(features: Any, label: Any, seed: Any) -> Any:
        assert features["image"].shape == (64,)
        return {"image": features["image"], "noise": tf.random.stateless_uniform([], seed)}, label

    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, parse=parse, transform=transform)
    first, second = (
        [x["noise"] for x, _ in input_fn({"batch_size": 30}).take(3).as_numpy_iterator()] for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 90


def test_parses_lines_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,class\n" + "".join(f"{i},{i / 4},{i % 3}\n" for i in range(50)))

    def columns(lines: tf.Tensor) -> Any:
        a, b, label = tf.io.decode_csv(lines, [[0], [0.0], [0]])
        return {"a": a, "b": b}, label

    input_fn = make_input_fn(TextLineFiles(path, skip_lines=1), training=False, parse=columns)
    found = list(input_fn({"batch_size": 20}).as_numpy_iterator())
    assert np.concatenate([x["a"] for x, _ in found])[:50].tolist() == list(range(50))
    assert np.concatenate([x["b"] for x, _ in found])[:50].tolist() == [i / 4 for i in range(50)]
    assert [x["weights"].sum() for x, _ in found] == [20, 20, 10]


def test_parses_records_of_one_length(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(30)))
    files = FixedLengthRecordFiles(path, [("label", "u1"), ("x", "u1", (2,))])
    input_fn = make_input_fn(
        files, training=False, parse=lambda records: tf.reshape(tf.io.decode_raw(records, tf.uint8), (-1, 3))
    )
    (found,) = input_fn({"batch_size": 10}).as_numpy_iterator()
    assert found.tolist() == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(10)]


def test_parse_can_branch_on_tensors(raw_digits: Written) -> None:
    def branching(serialized: tf.Tensor) -> Any:
        features, label = parse(serialized)
        if tf.reduce_max(label) > 100:
            label = label * 0
        return features, label

    dataset = make_input_fn(raw_digits.path, "test", training=False, parse=branching)({"batch_size": 101})
    assert next(dataset.as_numpy_iterator())[1].tolist() == raw_digits.labels["test"]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda _: None, UsageError, "parse returned None"),
        (
            lambda _: {"a": tf.constant(1)},
            FeatureError,
            r"result of parse\['a'\] is a .* of shape \(\).*\[records, \.\.\.\]",
        ),
        (lambda s: {"a": tf.io.decode_raw(s, tf.uint8)}, FeatureError, r"\['a'\] .* of shape \(5, None\)"),
        (lambda s: {"a": tf.strings.split(s)}, FeatureError, r"\['a'\] is a RaggedTensor"),
        (
            lambda s: {"a": tf.io.parse_example(s, {"label": tf.io.VarLenFeature(tf.int64)})["label"]},
            FeatureError,
            "SparseTensor",
        ),
    ],
)
def test_rejects_results_that_cannot_be_fed(raw_digits: Written, wrong: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_input_fn(raw_digits.path, "test", training=True, parse=wrong)({"batch_size": 5})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            lambda features, labels: (features, labels),
            "takes (features, labels), missing a required argument: 'labels'",
        ),
        (lambda: None, "takes (), too many positional arguments"),
    ],
)
def test_rejects_functions_with_other_arguments_in_one_line(raw_digits: Written, wrong: Any, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_input_fn(raw_digits.path, "test", training=True, parse=wrong)
    assert str(raised.value) == f"parse is called with (serialized), and {reason}. Let it take (serialized)."


def test_raises_the_users_own_type_error(raw_digits: Written) -> None:
    def wrong(serialized: tf.Tensor) -> Any:
        return parse(serialized, serialized)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        make_input_fn(raw_digits.path, "test", training=True, parse=wrong)({"batch_size": 5})


def test_rejects_a_parse_that_drops_rows(raw_digits: Written) -> None:
    def every_other(serialized: tf.Tensor) -> Any:
        features, label = parse(serialized)
        return {"image": features["image"][::2]}, label

    dataset = make_input_fn(raw_digits.path, "test", training=True, parse=every_other)({"batch_size": 10})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"the result of parse.*image.* does not have a row for each"
    ):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parse": 3}, "parse=3: pass a function"),
        ({"features": "image"}, "features='image': parse decides"),
        ({"extra_features": ("label",)}, "extra_features=.*: parse decides"),
        ({"size": (2, 2)}, "size=.*: parse decides"),
        ({"dtype": "float32"}, "dtype=float32"),
    ],
)
def test_rejects_options_that_parse_decides(raw_digits: Written, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_input_fn(raw_digits.path, "test", **{"training": True, "parse": parse, **grouped(options)})


def test_rejects_features_of_files_next_to_parse(tmp_path: Path, raw_digits: Written) -> None:
    dataset = open_dataset(raw_digits.path)
    path = dataset.shard_path(dataset.manifest.split("test").shards[0])
    files = TFRecordFiles(path, [Feature("label", "int64", "int64")])
    with pytest.raises(UsageError, match="parse decides what the features are"):
        make_input_fn(files, training=True, parse=parse)


def test_sample_weight_requires_labels(raw_digits: Written) -> None:
    options: Any = {"training": False, "weights": "sample_weight"}
    triple = make_input_fn(raw_digits.path, "test", parse=parse, **options)({"batch_size": 60})
    assert [weight.sum() for _, _, weight in triple.as_numpy_iterator()] == [60, 41]
    alone = make_input_fn(raw_digits.path, "test", parse=lambda s: parse(s)[0], **options)
    with pytest.raises(UsageError, match="needs labels, and there are only features"):
        alone({"batch_size": 60})
