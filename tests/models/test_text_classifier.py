from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.programs import estimator, first_values, random_values, rehearsed, rows, run_graph
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.text_classifier import TextClassifierParams, model_fn, text_classifier

SHAPE: dict[str, Any] = {
    "vocab_size": 13,
    "num_classes": 3,
    "embedding_size": 6,
    "filters": 5,
    "kernel_sizes": [1, 2, 3],
}
RNG = np.random.default_rng(4)
IDS = RNG.integers(0, 13, size=(4, 9)).astype(np.int32)
LENGTHS = np.array([9, 5, 1, 0])
MASK = (np.arange(9) < LENGTHS[:, None]).astype(np.float32)
PARAMS = TextClassifierParams.from_params(SHAPE)


def network(ids: Any = IDS, mask: Any = MASK) -> Any:
    return lambda: text_classifier(tf.constant(ids), tf.constant(mask), PARAMS, training=False)


def by_hand(v: dict[str, Any], ids: Any) -> Any:
    """The logits of one text without padding, with loops in numpy."""
    pooled: list[Any] = []
    for size in PARAMS.kernel_sizes:
        before = (size - 1) // 2
        padded = np.zeros((len(ids) + size - 1, PARAMS.embedding_size))
        padded[before : before + len(ids)] = v["embedding"][ids]
        runs = [np.tensordot(padded[i : i + size], v[f"conv_{size}/kernel"], 2) for i in range(len(ids))]
        outputs = np.maximum(np.array(runs).reshape(-1, PARAMS.filters) + v[f"conv_{size}/bias"], 0)
        zeros = np.zeros((1, PARAMS.filters))
        pooled += [np.max([*outputs, zeros[0]], axis=0), outputs.mean(0) if len(ids) else zeros[0]]
    return np.concatenate(pooled) @ v["logits/kernel"] + v["logits/bias"]


def test_padding_does_not_change_a_texts_logits() -> None:
    values = random_values(network())
    found, _ = run_graph(network(), values)
    assert (found.shape, found.dtype.name) == ((4, 3), "float32")
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found[row], by_hand(values, IDS[row, :length]), rtol=1e-4, atol=1e-5)


def test_logits_do_not_depend_on_padding_ids_or_length() -> None:
    values = random_values(network())
    other = np.where(MASK > 0, IDS, 7)
    longer = np.pad(other, ((0, 0), (0, 4)))
    before, _ = run_graph(network(), values)
    np.testing.assert_array_equal(before, run_graph(network(other), values)[0])
    after, _ = run_graph(network(longer, np.pad(MASK, ((0, 0), (0, 4)))), values)
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_initial_values_have_their_shapes_and_scale() -> None:
    values = first_values(network())
    assert {name: value.shape for name, value in values.items()} == {
        "embedding": (13, 6),
        "conv_1/kernel": (1, 6, 5),
        "conv_1/bias": (5,),
        "conv_2/kernel": (2, 6, 5),
        "conv_2/bias": (5,),
        "conv_3/kernel": (3, 6, 5),
        "conv_3/bias": (5,),
        "logits/kernel": (30, 3),
        "logits/bias": (3,),
    }
    assert values["embedding"].std() == pytest.approx(0.1, rel=0.3)


def texts(count: int, offset: int = 0) -> tuple[dict[str, Any], Any]:
    """Texts of random tokens and lengths, whose class is which of three pairs of tokens they contain."""
    labels = RNG.integers(0, 3, size=count).astype(np.int32)
    lengths = RNG.integers(2, 13, size=count)
    ids = RNG.integers(4, 13, size=(count, 12)).astype(np.int32)
    for row, (label, length) in enumerate(zip(labels, lengths, strict=True)):
        place = RNG.integers(0, length - 1)
        # The same tokens in another order: counts of tokens do not tell the first two classes apart.
        ids[row, place : place + 2] = ([0, 1], [1, 0], [2, 3])[label]
    mask = (np.arange(12) < lengths[:, None]).astype(np.int32)
    return {"input_ids": ids * mask, "attention_mask": mask}, labels + np.int32(offset)


def test_learns_evaluates_exactly_and_predicts(tmp_path: Path) -> None:
    features, labels = texts(300, offset=1)
    trained = estimator(model_fn, tmp_path, 32, learning_rate=0.01, label_offset=1, **SHAPE)
    trained.train(rows(features, labels, forever=True), max_steps=200)
    held_out, expected = texts(50, offset=1)
    found = trained.evaluate(rows(held_out, expected, padded=True))
    assert found["accuracy"] > 0.9
    predicted = list(trained.predict(rows(held_out, expected, padded=True)))
    classes = np.array([row["classes"] for row in predicted])
    assert np.mean(classes == expected) == pytest.approx(found["accuracy"], abs=1e-6)
    shares = np.array([row["probabilities"] for row in predicted])
    entropy = -np.log(shares[np.arange(50), expected - 1]).mean()
    assert found["cross_entropy"] == pytest.approx(entropy, rel=1e-3)


@pytest.mark.matrix
def test_replicas_have_the_loss_of_one(tmp_path: Path) -> None:
    features, labels = texts(16)
    losses = []
    for name, replicas in (("one", None), ("two", 2)):
        trained = estimator(model_fn, tmp_path / name, 16, replicas, **SHAPE, dropout=0)
        trained.train(rows(features, labels, forever=True), max_steps=3)
        losses.append(trained.last_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_all_tokens_count_without_a_mask() -> None:
    def build(features: Any) -> Any:
        return lambda: model_fn(features(), None, ModeKeys.PREDICT, SHAPE).predictions["probabilities"]

    values = random_values(network())
    masked = build(lambda: {"input_ids": tf.constant(IDS), "attention_mask": tf.ones_like(IDS)})
    bare = build(lambda: tf.constant(IDS))
    np.testing.assert_array_equal(run_graph(masked, values)[0], run_graph(bare, values)[0])


def test_rehearsal_finds_nothing_a_tpu_rejects(tmp_path: Path) -> None:
    features, labels = texts(16)
    assert [str(finding) for finding in rehearsed(model_fn, tmp_path, features, labels, **SHAPE)] == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"vocab_size": 1}, "vocab_size must be 2 or more"),
        ({"num_classes": 1}, "num_classes must be 2 or more"),
        ({"kernel_sizes": []}, "kernel_sizes must be a list of numbers of 1 or more"),
        ({"kernel_sizes": [3, 0]}, "kernel_sizes must be a list of numbers of 1 or more"),
        ({"filters": 0}, "filters must be 1 or more"),
        ({"dropout": 1.0}, "dropout must be in"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TextClassifierParams.from_params({**SHAPE, **params})
