"""Text and token datasets through make_input_fn, compared with plain loops."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
import tf_keras as keras

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tests.input.flat_options import grouped
from tpudata import FeatureError, UsageError, as_numpy, make_input_fn
from tpudata.format import Feature, Manifest, write_metadata

IDS = Feature("input_ids", "int64", "int64", (None,))
LABEL = Feature("label", "int64", "int64")
LENGTH = 16


def documents(count: int, longest: int, seed: int = 0) -> list[npt.NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 40_000, size, np.int32) for size in rng.integers(0, longest + 1, count)]


def write_tokens(folder: Path, texts: list[npt.NDArray[np.int32]], shards: int = 3) -> str:
    records = [{"input_ids": text, "label": number} for number, text in enumerate(texts)]
    return write_dataset(str(folder), {"train": records}, [IDS, LABEL], layout="tokens", shards=shards)


def pack(texts: list[npt.NDArray[np.int32]]) -> dict[str, Any]:
    """Return rows of whole documents, of which those that are too long are cut."""
    rows: list[list[Any]] = [[]]
    for text in texts:
        for start in range(0, len(text), LENGTH):
            document = text[start : start + LENGTH]
            if sum(map(len, rows[-1])) + len(document) > LENGTH:
                rows.append([])
            rows[-1].append(document)
    columns = {name: np.zeros((len(rows), LENGTH), np.int32) for name in ("input_ids", "segment_ids", "positions")}
    for number, row in enumerate(rows):
        values = {
            "input_ids": row,
            "segment_ids": [[place] * len(document) for place, document in enumerate(row, 1)],
            "positions": [range(len(document)) for document in row],
        }
        for name, parts in values.items():
            flat = [value for part in parts for value in part]
            columns[name][number, : len(flat)] = flat
    return columns


def write_rows(folder: Path, layout: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The rows of 40 documents, as int64 lists or as bytes of int32."""
    texts = documents(40, 20)
    stream = np.concatenate(texts)
    found = {"input_ids": np.pad(stream, (0, -len(stream) % LENGTH)).reshape(-1, LENGTH)}
    if layout == "packed":
        found = pack(texts)
    dtype, encoding = ("int64", None) if kind == "int64" else ("int32", "raw")
    features = [Feature(name, kind, dtype, (LENGTH,), encoding) for name in found]
    records = [
        {
            name: values[row] if kind == "int64" else values[row].astype("<i4").tobytes()
            for name, values in found.items()
        }
        for row in range(len(found["input_ids"]))
    ]
    return write_dataset(str(folder), {"train": records}, features, layout=layout, shards=2), found


def evaluated(path: str, batch_size: int, **options: Any) -> list[Any]:
    dataset = make_input_fn(path, "train", training=False, **options)({"batch_size": batch_size})
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("cache", [False, True])
def test_pads_tokens_and_adds_a_mask(tmp_path: Path, cache: bool) -> None:
    texts = documents(23, 12)
    path = write_tokens(tmp_path, texts)
    rows: list[Any] = []
    for features, labels in evaluated(path, 5, tokens=tpudata.Tokens(sequence_length=12, pad_id=9), cache=cache):
        assert features["input_ids"].dtype == features["attention_mask"].dtype == np.int32
        assert features["input_ids"].shape == features["attention_mask"].shape == (5, 12)
        rows += zip(features["input_ids"], features["attention_mask"], labels, features["weights"], strict=True)
    for (ids, mask, label, weight), (number, text) in itertools.zip_longest(rows[:23], enumerate(texts)):
        assert ids.tolist() == [*text.tolist(), *[9] * (12 - len(text))]
        assert mask.tolist() == [1] * len(text) + [0] * (12 - len(text))
        assert (label, weight) == (number, 1)
    assert [weight for *_, weight in rows[23:]] == [0, 0]


def test_rejects_longer_records_or_truncates_them(tmp_path: Path) -> None:
    texts = documents(23, 12)
    path = write_tokens(tmp_path, texts)
    input_fn = make_input_fn(path, "train", training=False, tokens=tpudata.Tokens(sequence_length=5))
    with pytest.raises(
        FeatureError, match=r"^Feature input_ids: a record is longer than sequence_length, 5\. Pass a larger"
    ):
        list(as_numpy(input_fn, 5))
    ids = np.concatenate(
        [f["input_ids"] for f, _ in evaluated(path, 5, tokens=tpudata.Tokens(sequence_length=5, truncate=True))]
    )
    assert [row.tolist() for row in ids[:23]] == [[*text[:5].tolist(), *[0] * (5 - len(text))] for text in texts]


def test_pads_with_the_pad_id_of_the_manifest(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [np.arange(1, 4, dtype=np.int32)], shards=1)
    manifest = tmp_path / "manifest.json"
    found = Manifest.from_bytes(manifest.read_bytes(), str(manifest))
    write_metadata(path, dataclasses.replace(found, options={"tokenizer": {"pad_id": 7, "eos_id": 3}}))
    ((features, _),) = evaluated(path, 1, tokens=tpudata.Tokens(sequence_length=5))
    assert features["input_ids"].tolist() == [[1, 2, 3, 7, 7]]


def test_targets_of_padded_tokens_are_the_next_tokens(tmp_path: Path) -> None:
    texts = documents(11, 9, seed=1)
    records = [{"input_ids": text} for text in texts]
    path = write_dataset(str(tmp_path), {"train": records}, [IDS], layout="tokens", shards=2)
    batches = evaluated(path, 4, tokens=tpudata.Tokens(sequence_length=9, targets=True))
    labels = np.concatenate([labels for _, labels in batches])
    weights = np.concatenate([features["token_weights"] for features, _ in batches])
    for row, text in enumerate(texts):
        behind = max(0, len(text) - 1)
        assert labels[row].tolist() == [*text[1:].tolist(), *[0] * (9 - behind)]
        assert weights[row].tolist() == [1] * behind + [0] * (9 - behind)
    assert not weights[11:].any()


@pytest.mark.parametrize(
    ("layout", "kind", "options"),
    [
        *((layout, kind, {}) for layout in ("sequences", "packed") for kind in ("int64", "bytes")),
        ("packed", "bytes", {"cache": True}),
        ("sequences", "int64", {"transform": lambda features, labels: (features, labels)}),
    ],
)
def test_targets_are_the_next_tokens_of_the_same_document(
    tmp_path: Path, options: dict[str, Any], layout: str, kind: str
) -> None:
    path, rows = write_rows(tmp_path, layout, kind)
    ids, count = rows["input_ids"], len(rows["input_ids"])
    batches = evaluated(path, 3, **options)
    found = {name: np.concatenate([f[name] for f, _ in batches]) for name in (*rows, "token_weights", "weights")}
    labels = np.concatenate([labels for _, labels in batches])
    for name, values in rows.items():
        np.testing.assert_array_equal(found[name][:count], values)
        assert found[name].dtype == np.int32
    real = rows["segment_ids"] if layout == "packed" else (ids > 0).astype(int)
    for row, place in itertools.product(range(count), range(LENGTH)):
        has_next = place + 1 < LENGTH and real[row, place] > 0 and real[row, place] == real[row, place + 1]
        assert found["token_weights"][row, place] == has_next
        assert labels[row, place] == (ids[row, place + 1] if has_next else 0)
    assert not found["token_weights"][count:].any()
    assert (found["weights"][:count] == 1).all()


def test_rejects_segments_of_another_length(tmp_path: Path) -> None:
    features = [Feature(name, "int64", "int64", (size,)) for name, size in (("input_ids", 4), ("segment_ids", 3))]
    record = {"input_ids": [1, 2, 3, 4], "segment_ids": [1, 1, 1]}
    path = write_dataset(str(tmp_path), {"train": [record]}, features, layout="packed", shards=1)
    with pytest.raises(FeatureError, match=r"^targets: 'segment_ids' has the shape \(3,\), and 'input_ids' \(4,\)"):
        evaluated(path, 1)
    ((features_read, _),) = [(batch, None) for batch in evaluated(path, 1, tokens=tpudata.Tokens(targets=False))]
    assert features_read["segment_ids"].tolist() == [[1, 1, 1]]


def test_an_eos_that_is_also_padding_is_predicted_once(tmp_path: Path) -> None:
    records = [{"input_ids": [5, 6, 2, 2, 2]}, {"input_ids": [5, 6, 7, 8, 2]}]
    path = write_dataset(
        str(tmp_path), {"train": records}, [Feature("input_ids", "int64", "int64", (5,))], layout="sequences", shards=1
    )
    manifest = tmp_path / "manifest.json"
    found = Manifest.from_bytes(manifest.read_bytes(), str(manifest))
    write_metadata(path, dataclasses.replace(found, options={"tokenizer": {"pad_id": 2, "eos_id": 2}}))
    ((features, labels),) = evaluated(path, 2)
    assert labels.tolist() == [[6, 2, 0, 0, 0], [6, 7, 8, 2, 0]]
    assert features["token_weights"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]


def test_keras_evaluates_with_token_weights(tmp_path: Path) -> None:
    path, rows = write_rows(tmp_path, "packed", "int64")
    options: Any = {"weights": "sample_weight", "transform": lambda features, labels: (features, labels % 50)}
    for training in (True, False):
        dataset = make_input_fn(path, "train", training=training, **options)({"batch_size": 4})
        features, labels, weights = next(iter(dataset))
        assert sorted(features) == ["input_ids", "positions", "segment_ids"]
        assert weights.shape == labels.shape == (4, LENGTH)
    model = keras.Sequential([keras.layers.Embedding(40_000, 4), keras.layers.Dense(50)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, weighted_metrics=["accuracy"])
    found = model.evaluate(dataset.map(lambda f, y, w: (f["input_ids"], y, w)), verbose=0)[1]
    same = rows["segment_ids"][:, 1:] == rows["segment_ids"][:, :-1]
    has_next = same & (rows["segment_ids"][:, 1:] > 0)
    guesses = model(rows["input_ids"]).numpy().argmax(-1)[:, :-1]
    assert found == pytest.approx((guesses == rows["input_ids"][:, 1:] % 50)[has_next].mean(), abs=1e-6)


def test_each_of_several_texts_gets_a_mask(tmp_path: Path) -> None:
    features = [Feature(name, "int64", "int64", (None,)) for name in ("source_ids", "target_ids")]
    records = [{"source_ids": [1, 2], "target_ids": [3]}, {"source_ids": [], "target_ids": [4, 5, 6]}]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="tokens", shards=1)
    (batch,) = evaluated(path, 2, tokens=tpudata.Tokens(sequence_length=3))
    assert batch["source_ids"].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert batch["source_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert batch["target_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_only_tokens_are_padded_with_pad_id(tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    features = [Feature(name, "int64", "int64", (None,)) for name in names]
    records = [dict(zip(names, values, strict=True)) for values in (([5, 6], [0, 1], [0, 1]), ([7], [1], [1]))]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="table", shards=1)
    (batch,) = evaluated(path, 2, tokens=tpudata.Tokens(sequence_length=3, pad_id=9))
    assert {name: batch[name].tolist() for name in batch} == {
        "input_ids": [[5, 6, 9], [7, 9, 9]],
        "attention_mask": [[0, 1, 0], [1, 0, 0]],
        "token_type_ids": [[0, 1, 0], [1, 0, 0]],
        "weights": [1, 1],
    }


def test_rejects_targets_if_token_weights_is_taken(tmp_path: Path) -> None:
    features = [IDS, Feature("token_weights", "float", "float32")]
    records = [{"input_ids": [1, 2], "token_weights": 0.5}]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="table", shards=1)
    with pytest.raises(FeatureError, match="Feature 'token_weights': targets put the weights of tokens there"):
        evaluated(path, 1, tokens=tpudata.Tokens(sequence_length=3, targets=True))


@pytest.mark.parametrize("layout", ["packed", "image"])
def test_rejects_a_pad_id_if_nothing_is_padded(tmp_path: Path, raw_digits: Written, layout: str) -> None:
    path = raw_digits.path if layout == "image" else write_rows(tmp_path, "packed", "int64")[0]
    with pytest.raises(UsageError, match="pad_id=0: nothing is padded with it"):
        make_input_fn(path, "train", training=True, tokens=tpudata.Tokens(pad_id=0))


def test_transform_can_tokenize_text_with_labels(tmp_path: Path) -> None:
    lines = [f"line {i} ä" for i in range(7)]
    records = [{"text": line, "label": i} for i, line in enumerate(lines)]
    text = Feature("text", "bytes", "string", encoding="utf8")
    path = write_dataset(str(tmp_path), {"train": records}, [text, LABEL], layout="text", shards=2)

    def tokenize(features: Any, label: Any) -> Any:
        ids = tf.cast(tf.io.decode_raw(features["text"], tf.uint8), tf.int32)[:12]
        return {"input_ids": tf.ensure_shape(tf.pad(ids, [[0, 12 - tf.size(ids)]]), [12])}, label

    batches = evaluated(path, 4, transform=tokenize)
    ids = np.concatenate([features["input_ids"] for features, _ in batches])[:7]
    assert [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in ids] == lines


@pytest.mark.parametrize("pipelines", [2, *(pytest.param(count, marks=pytest.mark.matrix) for count in (1, 3))])
def test_hosts_and_restarts_give_the_same_global_batches(tmp_path: Path, pipelines: int) -> None:
    path = write_tokens(tmp_path, documents(50, 12))
    input_fn = make_input_fn(
        path, "train", training=True, tokens=tpudata.Tokens(sequence_length=12), seed=4, shuffle=20
    )
    whole = [labels.tolist() for _, labels in input_fn({"batch_size": 6}).take(20).as_numpy_iterator()]
    hosts = []
    for number in range(pipelines):
        context = tf.distribute.InputContext(pipelines, number, pipelines)
        dataset = input_fn({"batch_size": 6 // pipelines}, context, start_step=7)
        hosts.append([labels.tolist() for _, labels in dataset.take(13).as_numpy_iterator()])
    assert [np.concatenate(parts).tolist() for parts in zip(*hosts, strict=True)] == whole[7:]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, FeatureError, r"'input_ids'.*Pass tokens=tpudata.Tokens\(sequence_length=N\).*or Tokens\(buckets="),
        ({"sequence_length": 0}, UsageError, "sequence_length: .*got 0"),
        ({"sequence_length": True}, UsageError, "sequence_length: .*got True"),
        ({"truncate": True}, UsageError, r"truncate: .*Pass sequence_length=N"),
        ({"sequence_length": 8, "truncate": 1}, UsageError, "truncate: .*got 1"),
        ({"sequence_length": 8, "pad_id": -1}, UsageError, "pad_id: .*got -1"),
        ({"sequence_length": 8, "targets": 1}, UsageError, "targets: .*got 1"),
        ({"sequence_length": 8, "targets": True}, UsageError, "has labels, 'label'"),
        ({"sequence_length": 8, "buckets": (8,)}, UsageError, "Omit one"),
        ({"buckets": (8, 4)}, UsageError, r"buckets=\(8, 4\): the lengths ascend, such as \(4, 8\)"),
        ({"buckets": 8}, UsageError, "pass a tuple of lengths"),
        ({"buckets": ()}, UsageError, "pass a tuple of lengths"),
        ({"buckets": (8,), "cache": True}, UsageError, "cache=True: batches by buckets"),
    ],
)
def test_rejects_wrong_arguments(tmp_path: Path, options: dict[str, Any], error: type, message: str) -> None:
    path = write_tokens(tmp_path, documents(3, 4), shards=1)
    with pytest.raises(error, match=message):
        make_input_fn(path, "train", training=True, **grouped(options))


def test_rejects_sequence_length_for_fixed_lengths(tmp_path: Path) -> None:
    path, _ = write_rows(tmp_path, "sequences", "int64")
    asked: dict[str, Any]
    for asked, name in (({"sequence_length": 8}, "sequence_length=8"), ({"buckets": (4, 8)}, "buckets=(4, 8)")):
        with pytest.raises(UsageError) as raised:
            make_input_fn(path, "train", training=True, **grouped(asked))
        assert str(raised.value) == (
            f"{name}: it is for sequences of tokens whose length varies, and the features input_ids are none. Omit it."
        )
    bare = make_input_fn(path, "train", training=True, features="input_ids")({"batch_size": 2})
    assert bare.element_spec == tf.TensorSpec([2, LENGTH], tf.int32)
    with pytest.raises(UsageError, match="a bare tensor has no place for their weights"):
        make_input_fn(path, "train", training=True, features="input_ids", tokens=tpudata.Tokens(targets=True))
