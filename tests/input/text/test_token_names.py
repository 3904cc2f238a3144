"""Batches under the names of MaxText, T5X and Transformers, compared with rows built document by document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import write_dataset, write_images
from tests.input.flat_options import grouped
from tests.input.text.test_sequence import IDS, LENGTH, documents, write_rows, write_tokens
from tpudata import FeatureError, UsageError, make_input_fn
from tpudata.format import Feature

Array = npt.NDArray[Any]


def batches(path: str, batch_size: int, **options: Any) -> dict[str, Array]:
    """All batches of an exact pass, one after the other."""
    options = {"training": False, **options}
    found = list(make_input_fn(path, "train", **options)({"batch_size": batch_size}).as_numpy_iterator())
    assert all(isinstance(batch, dict) for batch in found)
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def split_rows(columns: dict[str, Array]) -> list[list[list[int]]]:
    """The documents of each packed row."""
    rows = []
    for ids, segments in zip(columns["input_ids"], columns["segment_ids"], strict=True):
        rows.append([ids[segments == number].tolist() for number in range(1, int(segments.max()) + 1)])
    return rows


def padded(parts: list[list[int]]) -> list[int]:
    row = [value for part in parts for value in part]
    return row + [0] * (LENGTH - len(row))


@pytest.mark.parametrize("kind", ["int64", "bytes"])
def test_packed_rows_get_maxtext_names(tmp_path: Path, kind: str) -> None:
    path, columns = write_rows(tmp_path, "packed", kind)
    rows = split_rows(columns)
    found = batches(path, 7, tokens=tpudata.Tokens(names="maxtext"))
    assert sorted(found) == [
        "inputs",
        "inputs_position",
        "inputs_segmentation",
        "targets",
        "targets_position",
        "targets_segmentation",
    ]
    assert {array.dtype for array in found.values()} == {np.dtype(np.int32)}
    for number, docs in enumerate(rows):
        assert found["inputs"][number].tolist() == padded(docs)
        assert found["inputs_segmentation"][number].tolist() == padded([[n + 1] * len(d) for n, d in enumerate(docs)])
        assert found["inputs_position"][number].tolist() == padded([[*range(len(d))] for d in docs])
        assert found["targets"][number].tolist() == padded([[*d[1:], 0] for d in docs])
        assert found["targets_segmentation"][number].tolist() == padded(
            [[n + 1] * (len(d) - 1) + [0] for n, d in enumerate(docs)]
        )
        assert found["targets_position"][number].tolist() == found["inputs_position"][number].tolist()
    assert not found["targets_segmentation"][len(rows) :].any()


def test_packed_rows_get_t5x_names(tmp_path: Path) -> None:
    path, columns = write_rows(tmp_path, "packed", "bytes")
    rows = split_rows(columns)
    found = batches(path, 7, tokens=tpudata.Tokens(names="t5x"))
    for number, docs in enumerate(rows):
        assert found["decoder_target_tokens"][number].tolist() == padded(docs)
        assert found["decoder_input_tokens"][number].tolist() == padded([[0, *d[:-1]] for d in docs])
        assert found["decoder_loss_weights"][number].tolist() == padded([[1] * len(d) for d in docs])
        assert found["decoder_segment_ids"][number].tolist() == padded([[n + 1] * len(d) for n, d in enumerate(docs)])
        assert found["decoder_positions"][number].tolist() == padded([[*range(len(d))] for d in docs])
    assert len(found) == 5
    assert not found["decoder_loss_weights"][len(rows) :].any()


def test_packed_rows_for_transformers_have_unshifted_labels(tmp_path: Path) -> None:
    path, columns = write_rows(tmp_path, "packed", "bytes")
    rows = split_rows(columns)
    found = batches(path, 7, tokens=tpudata.Tokens(names="transformers"))
    assert sorted(found) == ["attention_mask", "input_ids", "labels", "position_ids"]
    assert {array.dtype for array in found.values()} == {np.dtype(np.int32)}
    for number, docs in enumerate(rows):
        row = [label for document in docs for label in [-100, *document[1:]]]
        assert found["labels"][number].tolist() == row + [-100] * (LENGTH - len(row))
        assert found["input_ids"][number].tolist() == padded(docs)
        assert found["attention_mask"][number].tolist() == padded([[1] * len(d) for d in docs])
        assert found["position_ids"][number].tolist() == padded([[*range(len(d))] for d in docs])
    assert (found["labels"][len(rows) :] == -100).all()


def test_padded_tokens_get_transformers_names(tmp_path: Path) -> None:
    texts = [text for text in documents(9, LENGTH) if len(text)]
    # The loss counts the tokens from the third on.
    records = [{"input_ids": text, "loss_weights": [0, 0, *[1] * len(text)][: len(text)]} for text in texts]
    features = [IDS, Feature("loss_weights", "int64", "int64", (None,))]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="tokens", shards=1)
    tokens = tpudata.Tokens(sequence_length=LENGTH, pad_id=9, targets=True, names="transformers")
    found = batches(path, len(texts), tokens=tokens)
    assert sorted(found) == ["attention_mask", "input_ids", "labels"]
    for number, text in enumerate(texts):
        assert found["input_ids"][number].tolist() == [*text, *[9] * (LENGTH - len(text))]
        assert found["attention_mask"][number].tolist() == padded([[1] * len(text)])
        counted = [-100, -100, *text[2:].tolist()][: len(text)]
        assert found["labels"][number].tolist() == counted + [-100] * (LENGTH - len(text))


def test_stream_rows_and_padded_tokens_are_one_segment(tmp_path: Path) -> None:
    path, columns = write_rows(tmp_path / "rows", "sequences", "bytes")
    ids = columns["input_ids"]
    found = batches(path, len(ids), tokens=tpudata.Tokens(names="maxtext"))
    # Padding of a stream is at the end of its last row alone.
    real = LENGTH - len(ids[-1]) + len(np.trim_zeros(ids[-1], "b"))
    segments = np.ones(ids.shape, np.int32)
    segments[-1, real:] = 0
    np.testing.assert_array_equal(found["inputs_segmentation"], segments)
    np.testing.assert_array_equal(found["inputs_position"], np.arange(LENGTH) * segments)
    np.testing.assert_array_equal(found["targets"][:, :-1], ids[:, 1:])

    texts = [text for text in documents(9, LENGTH) if len(text)]
    records = [{"input_ids": text} for text in texts]
    path = write_dataset(str(tmp_path / "tokens"), {"train": records}, [IDS], layout="tokens", shards=1)
    found = batches(
        path, len(texts), tokens=tpudata.Tokens(sequence_length=LENGTH, pad_id=9, targets=True, names="t5x")
    )
    for number, text in enumerate(texts):
        assert found["decoder_target_tokens"][number].tolist() == padded([text.tolist()])
        assert found["decoder_input_tokens"][number].tolist() == padded([[0, *text[:-1].tolist()]])
        assert found["decoder_segment_ids"][number].tolist() == padded([[1] * len(text)])


def test_names_do_not_change_training_batches(tmp_path: Path) -> None:
    path, _ = write_rows(tmp_path, "packed", "bytes")
    plain, named = (
        make_input_fn(path, "train", training=True, seed=3, tokens=tpudata.Tokens(names=names))(
            {"batch_size": 4}, start_step=5
        )
        for names in (None, "maxtext")
    )
    assert named.cardinality() == tf.data.INFINITE_CARDINALITY
    assert all(spec.shape == (4, LENGTH) for spec in named.element_spec.values())
    for (features, labels), batch in zip(plain.take(9), named.take(9), strict=True):
        np.testing.assert_array_equal(features["input_ids"], batch["inputs"])
        np.testing.assert_array_equal(labels, batch["targets"])


def test_other_features_keep_their_names(tmp_path: Path) -> None:
    features = [Feature("input_ids", "int64", "int64", (3,)), Feature("score", "float", "float32")]
    records = [{"input_ids": [1, 2, 3], "score": 0.5}] * 2
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="packed", shards=1)
    found = batches(path, 2, extra_features=("score",), tokens=tpudata.Tokens(names="maxtext"))
    assert found["score"].tolist() == [0.5, 0.5]


def test_rejects_names_that_do_not_fit(tmp_path: Path) -> None:
    path, _ = write_rows(tmp_path / "rows", "packed", "bytes")
    wrong: list[dict[str, Any]] = [{"names": "flax"}, {"targets": False}, {"weights": "sample_weight"}]
    for options in wrong:
        with pytest.raises(UsageError, match=r"names[:=]"):
            make_input_fn(path, "train", training=False, **grouped({"names": "t5x", **options}))
    images = {"train": [np.zeros((4, 4, 3), np.uint8)] * 2}
    write_images(str(tmp_path / "images"), images, {"train": [0, 1]}, shape=(4, 4, 3), shards=1)
    with pytest.raises(UsageError, match="needs the next tokens of 'input_ids' as targets"):
        make_input_fn(str(tmp_path / "images"), "train", training=False, tokens=tpudata.Tokens(names="maxtext"))
    # Labels and next tokens exclude each other: each error gives a way out.
    labelled = write_tokens(tmp_path / "labelled", documents(3, 9))
    tokens = {"sequence_length": 12, "names": "t5x"}
    for options, message in (
        (
            {},
            "names='t5x': .* the dataset has labels, 'label'. Omit names, or convert the text again without that field",
        ),
        (
            {"targets": True},
            "targets: .* has labels, 'label'. Omit targets, or convert the text again without that field",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            make_input_fn(labelled, "train", training=True, **grouped({**tokens, **options}))

    def without_tokens(features: Any, labels: Any) -> Any:
        return {"token_weights": features["token_weights"]}, labels

    input_fn = make_input_fn(
        path, "train", training=False, transform=without_tokens, tokens=tpudata.Tokens(names="t5x")
    )
    with pytest.raises(FeatureError, match="transform dropped them"):
        input_fn({"batch_size": 2})
