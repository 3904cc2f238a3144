"""as_numpy: numpy arrays for each process, and errors of one line."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, copy_with_damage, encode_image, write_dataset, write_undecodable
from tpudata import (
    CentreCrop,
    CorruptionError,
    DatasetError,
    FeatureError,
    Mixture,
    TFRecordFiles,
    UsageError,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature, read_records


def mixed(folder: str, seed: int | None) -> Mixture:
    return Mixture([(make_input_fn(folder, "train", training=True, seed=seed), 1), (first_of(folder), 1)])


def first_of(folder: str) -> Any:
    return make_input_fn(folder, "train", training=True, seed=1)


@pytest.mark.parametrize(
    ("make", "process_count", "warnings"),
    [
        (lambda folder: make_input_fn(folder, "train", training=True), 2, 1),
        (lambda folder: mixed(folder, None), 2, 1),
        (lambda folder: make_input_fn(folder, "train", training=True), 1, 0),
        (lambda folder: make_input_fn(folder, "train", training=False), 2, 0),
        (first_of, 2, 0),
        (lambda folder: mixed(folder, 1), 2, 0),
    ],
)
def test_warns_once_of_processes_with_different_seeds(
    raw_digits: Written, make: Any, process_count: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    input_fn = make(raw_digits.path)
    for index in range(process_count):
        as_numpy(input_fn, 96, process_index=index, process_count=process_count)
        input_fn({"batch_size": 96}, host_index=index, host_count=process_count)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == warnings
    assert all("this call is for 48 of the 96 rows" in text and "pass the same seed=" in text for text in texts)


def test_does_not_warn_of_seeds_on_one_host(raw_digits: Written, caplog: pytest.LogCaptureFixture) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True)
    for index in range(2):
        context = tf.distribute.InputContext(2, index, 2)
        input_fn({"batch_size": 48, "context": types.SimpleNamespace(num_hosts=1)}, input_context=context)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("training", [True, False])
def test_processes_share_the_global_batch(raw_digits: Written, training: bool) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=training, seed=1)
    whole = [labels for (_, labels), _ in zip(as_numpy(input_fn, 96), range(4), strict=False)]
    # In training, three rows are read together: a process's rows begin inside such a group.
    for want, (_, labels) in zip(whole, as_numpy(input_fn, 96, process_index=1, process_count=24), strict=False):
        assert labels.tolist() == want[4:8].tolist()


@pytest.mark.parametrize(
    ("batch_size", "processes"),
    [(24, 3), (101, 1), *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((8, 1), (8, 2), (64, 8)))],
)
def test_evaluation_over_processes_is_exact(raw_digits: Written, batch_size: int, processes: int) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=False)
    seen, steps = [], set()
    for index in range(processes):
        batches = list(as_numpy(input_fn, batch_size, process_index=index, process_count=processes))
        steps.add(len(batches))
        seen += [int(y) for x, labels in batches for y, w in zip(labels, x["weights"], strict=True) if w]
    assert steps == {-(-101 // batch_size)}
    assert sorted(seen) == sorted(raw_digits.labels["test"])


def test_starts_at_a_step(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    whole = [y.tolist() for (_, y), _ in zip(as_numpy(input_fn, 40), range(20), strict=False)]
    assert next(as_numpy(input_fn, 40, start_step=13))[1].tolist() == whole[13]


def test_arrays_are_plain_and_owned_by_the_caller(tmp_path: Path) -> None:
    features = [
        Feature("image_raw", "bytes", "uint8", (2, 2, 1), "raw"),
        Feature("name", "bytes", "string"),
        Feature("score", "float", "float32", (2,)),
        Feature("label", "int64", "int64"),
    ]
    records = [{"image_raw": bytes([i] * 4), "name": "ä" * i, "score": [i / 1, -i / 2], "label": i} for i in range(6)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="raw", shards=2)
    input_fn = make_input_fn(
        path,
        "train",
        training=False,
        extra_features=("name", "score"),
        images=tpudata.Images(dtype="bfloat16"),
        weights="sample_weight",
    )
    ((found, labels, weights),) = as_numpy(input_fn, 6)
    leaves = [*found.values(), labels, weights]
    assert all(type(leaf) is np.ndarray and leaf.flags.writeable for leaf in leaves)
    assert found["image"].dtype == ml_dtypes.bfloat16
    assert found["image"][:, 0, 0, 0].astype(np.float32).tolist() == [
        float(np.float32(i / 255).astype(ml_dtypes.bfloat16)) for i in range(6)
    ]
    assert found["name"].tolist() == [("ä" * i).encode() for i in range(6)]
    assert found["score"].tolist() == [[i, -i / 2] for i in range(6)]
    assert (labels.tolist(), weights.tolist()) == (list(range(6)), [1.0] * 6)


def test_a_closed_iterator_ends(raw_digits: Written) -> None:
    iterator: Any = as_numpy(make_input_fn(raw_digits.path, "train", training=True, shuffle=50), 8)
    next(iterator)
    iterator.close()
    assert next(iterator, None) is None


def test_uses_a_dataset_unchanged() -> None:
    dataset = tf.data.Dataset.range(6).map(lambda x: {"x": tf.cast(x, tf.bfloat16)}).batch(4)
    first, second = as_numpy(dataset)
    assert first["x"].dtype == ml_dtypes.bfloat16
    assert (first["x"].tolist(), second["x"].tolist()) == ([0, 1, 2, 3], [4, 5])
    for arguments in ({"batch_size": 4}, {"process_count": 2}, {"start_step": 1}):
        with pytest.raises(UsageError, match="the batches of a dataset are used unchanged"):
            as_numpy(dataset, **arguments)


# A cache in memory is filled by the call itself.
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_reports_a_damaged_record_in_one_line(raw_digits: Written, tmp_path: Path, training: bool, cache: bool) -> None:
    path, shard = copy_with_damage(raw_digits.path, tmp_path / "copy")
    with pytest.raises(CorruptionError) as raised:
        list(as_numpy(make_input_fn(path, "test", training=training, cache=cache), 101))
    assert (raised.value.path, raised.value.offset) == (shard, 0)
    assert str(raised.value).startswith(
        f"{shard} at byte 0: the record is damaged or cut. Run `tpudata verify DIR` to list"
    )
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("options", [{}, {"images": tpudata.Images(crop=CentreCrop(24))}, {"cache": True}])
def test_reports_an_undecodable_image_in_one_line(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_undecodable(str(tmp_path))
    with pytest.raises(DatasetError, match=r"^an encoded image does not decode: Invalid PNG data") as raised:
        list(as_numpy(make_input_fn(path, "train", training=False, **options), 8))
    assert len(str(raised.value).splitlines()) == 1


def test_reports_an_integer_beyond_int32_next_to_an_image(tmp_path: Path) -> None:
    image = encode_image(np.zeros((4, 4, 1), np.uint8))
    features = [Feature("image/encoded", "bytes", "uint8", (4, 4, 1), "image"), Feature("label", "int64", "int64")]
    records = [{"image/encoded": image, "label": label} for label in (1, 2**40)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="imagenet", shards=1)
    with pytest.raises(
        FeatureError, match=r"^Feature label: a value does not fit int32, .* or store smaller numbers\.$"
    ):
        list(as_numpy(make_input_fn(path, "train", training=False), 2))


SIZE = encode_image(np.zeros((5, 4, 1), np.uint8))


ODD: list[tuple[dict[str, Any], str]] = [
    ({"label": None}, "feature 'label' is not in the record. "),
    ({"label": [1, 2]}, "feature 'label' has 2 values, and not those of shape []. "),
    ({"label": 0.5}, "feature 'label' has values of a different kind. "),
    ({"x": [b"ab", b"c"]}, "feature 'x' has a different number of values. "),
    ({"x": b"ab"}, "feature 'x' does not have the 3 bytes of (3,) uint8 values. "),
    ({"image": SIZE}, "an encoded image is [5,4,1], and its feature says [4,4,1]. "),
]


@pytest.mark.parametrize(
    ("odd", "message", "is_plain"),
    [
        *((*odd, True) for odd in ODD),
        *((*odd, False) for odd in (ODD[0], ODD[-1])),
        *(pytest.param(*odd, False, marks=pytest.mark.matrix) for odd in ODD[1:-1]),
    ],
)
def test_reports_a_record_of_other_features_next_to_an_image(
    tmp_path: Path, odd: dict[str, Any], message: str, is_plain: bool
) -> None:
    features = [
        Feature("image", "bytes", "uint8", (4, 4, 1), "image"),
        Feature("x", "bytes", "uint8", (3,), "raw"),
        Feature("label", "int64", "int64"),
    ]
    good: dict[str, Any] = {"image": encode_image(np.zeros((4, 4, 1), np.uint8)), "x": b"abc", "label": 1}
    bad = {name: value for name, value in {**good, **odd}.items() if value is not None}
    path = write_dataset(str(tmp_path), {"train": [good, bad]}, features, layout="", shards=1)
    if is_plain:
        input_fn = make_input_fn(TFRecordFiles(f"{path}/train-*.tfrecord", features), training=False)
    else:
        input_fn = make_input_fn(path, "train", training=False)
    with pytest.raises(FeatureError) as raised:
        list(as_numpy(input_fn, 2))
    (shard,) = Path(path).glob("*.tfrecord")
    _, (second, _) = read_records(str(shard))
    place = f"{shard} at byte {second}: " if message.startswith("feature") else ""
    assert str(raised.value).startswith(f"{place}{message}")
    assert len(str(raised.value).splitlines()) == 1
    if is_plain:
        assert any(mend in str(raised.value) for mend in ("read_records(FILE)", "Correct features=", "In features="))
    else:
        assert "Convert the dataset again." in str(raised.value)


@pytest.mark.parametrize(("odd", "message"), [*ODD[:-1], ({"label": []}, "feature 'label' has no values. ")])
def test_names_the_first_record_if_its_features_are_odd(tmp_path: Path, odd: dict[str, Any], message: str) -> None:
    features = [Feature("x", "bytes", "uint8", (3,), "raw"), Feature("label", "int64", "int64")]
    good: dict[str, Any] = {"x": b"abc", "label": 1}
    bad = {name: value for name, value in {**good, **odd}.items() if value is not None}
    path = write_dataset(str(tmp_path), {"train": [bad, good]}, features, layout="", shards=1)
    with pytest.raises(FeatureError) as raised:
        list(as_numpy(make_input_fn(path, "train", training=False), 2))
    assert str(raised.value).startswith(f"{path}/train-00000-of-00001.tfrecord at byte 0: {message}")


def test_keeps_errors_of_the_users_transform(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        tf.debugging.assert_less(labels, 5, "too large")
        return features, labels

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        list(as_numpy(make_input_fn(raw_digits.path, "test", training=False, transform=transform), 10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": None}, r"^batch_size: invalid value \(got None"),
        ({"batch_size": 0}, r"^batch_size: invalid value \(got 0"),
        ({"batch_size": 2.5}, r"^batch_size: invalid value \(got 2.5"),
        ({"process_count": 0}, r"^process_count: invalid value \(got 0"),
        ({"process_index": -1}, r"^process_index: invalid value \(got -1"),
        ({"process_index": 2, "process_count": 2}, "process_index: out of range"),
        ({"process_count": 3}, r"^batch_size: processes cannot share .*got 8, expected a multiple of 3"),
        ({"start_step": -1}, "start_step=-1"),
        ({"input_fn": 5}, r"not an input_fn \(got 5\)"),
    ],
)
def test_rejects_wrong_arguments_at_the_call(raw_digits: Written, arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "input_fn": make_input_fn(raw_digits.path, "train", training=True),
        "batch_size": 8,
    } | arguments
    with pytest.raises(UsageError, match=message):
        as_numpy(**given)


def test_closing_an_iterator_at_interpreter_exit_raises_nothing(
    digits: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: Any = as_numpy(make_input_fn(digits.path, "test", training=False), 8)
    next(batches)
    # At its end Python empties modules, and then closes what is left of their generators.
    module = batches.gi_frame.f_globals
    for name in [name for name in module if not name.startswith("__")]:
        monkeypatch.setitem(module, name, None)
    batches.close()
