import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.models.programs import estimator, first_values, random_like, rehearsed, rows, run_graph, variables
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.char_lstm import CharLstmParams, char_lstm, generate, model_fn

RNG = np.random.default_rng(4)
SMALL = CharLstmParams(vocab_size=11, embedding_size=3, hidden_units=5, num_layers=2, max_new_tokens=6)
PARAMS = {"vocab_size": 11, "embedding_size": 8, "hidden_units": 16, "max_new_tokens": 6}
IDS = RNG.integers(0, 11, size=(4, 9)).astype(np.int32)


def network(ids: Any, params: CharLstmParams = SMALL, training: bool = False) -> Any:
    return functools.partial(lambda ids: char_lstm(tf.constant(ids), params, training), ids)


def keras_twin(values: dict[str, Any]) -> Any:
    """The same network of Keras' layers."""
    layers = [tf_keras.layers.Embedding(11, 3)]
    layers += [tf_keras.layers.LSTM(5, return_sequences=True) for _ in range(2)]
    twin = tf_keras.Sequential([*layers, tf_keras.layers.Dense(11)])
    twin.build([None, None])
    names = ["embedding"]
    names += [f"lstm_{i}/{part}" for i in range(2) for part in ("kernel", "recurrent_kernel", "bias")]
    twin.set_weights([values[name] for name in [*names, "logits/kernel", "logits/bias"]])
    return twin


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return random_like(first_values(network(IDS)), scale=0.8)


def test_initial_values_have_the_shapes_and_scales_of_keras() -> None:
    values = first_values(network(IDS, CharLstmParams(vocab_size=50, hidden_units=64)))
    assert {name: value.shape for name, value in values.items()} == {
        "embedding": (50, 64),
        "lstm_0/kernel": (64, 256),
        "lstm_0/recurrent_kernel": (64, 256),
        "lstm_0/bias": (256,),
        "logits/kernel": (64, 50),
        "logits/bias": (50,),
    }
    bias = values["lstm_0/bias"].reshape(4, 64)
    assert bias.sum() == bias[1].sum() == 64
    recurrent = values["lstm_0/recurrent_kernel"].astype(np.float64)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(64), atol=1e-5)
    assert values["lstm_0/kernel"].std() == pytest.approx(np.sqrt(2 / (64 + 256)), rel=0.05)
    assert np.abs(values["embedding"]).max() <= 0.05


def test_logits_equal_keras(values: dict[str, Any]) -> None:
    logits, _ = run_graph(network(IDS), values)
    assert (logits.shape, logits.dtype.name) == ((4, 9, 11), "float32")
    np.testing.assert_allclose(logits, keras_twin(values)(IDS), rtol=1e-4, atol=1e-5)


def test_later_tokens_do_not_change_earlier_logits(values: dict[str, Any]) -> None:
    others = IDS.copy()
    others[:, 5:] = (others[:, 5:] + 1) % 11
    before, after = (run_graph(network(ids), values)[0] for ids in (IDS, others))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert not np.allclose(before[:, 5:], after[:, 5:])


def test_generates_the_tokens_of_repeated_keras_calls(values: dict[str, Any]) -> None:
    lengths = np.array([1, 4, 9, 6], np.int32)
    params = CharLstmParams(**{**vars(SMALL), "temperature": 0.0})

    def build() -> Any:
        return generate(tf.constant(IDS), tf.constant(lengths), tf.zeros([4], tf.int32), params)

    (tokens, scores), _ = run_graph(build, values)
    assert (tokens.shape, tokens.dtype.name, scores.shape) == ((4, 6), "int32", (4, 6))
    twin = keras_twin(values)
    for row, length in enumerate(lengths):
        prompt = list(IDS[row, :length])
        for token, score in zip(tokens[row], scores[row], strict=True):
            logits = np.asarray(twin(np.array([prompt])))[0, -1].astype(np.float64)
            assert token == logits.argmax()
            assert score == pytest.approx(logits.max() - np.log(np.exp(logits).sum()), abs=1e-4)
            prompt.append(token)


def test_generated_tokens_depend_only_on_the_prompt_and_the_seeds(tmp_path: Path) -> None:
    features = {
        "input_ids": np.concatenate([IDS, IDS]),
        "prompt_length": np.array([3, 4, 5, 9] * 2, np.int32),
        "prompt_seed": np.array([0] * 4 + [0, 0, 1, 1], np.int32),
    }
    input_fn = rows(features, np.zeros(8, np.int32))
    whole = list(estimator(model_fn, tmp_path, 8, **PARAMS).predict(input_fn, yield_single_examples=True))
    found = np.array([row["generated_ids"] for row in whole])
    assert found.shape == (8, 6)
    np.testing.assert_array_equal([row["input_ids"] for row in whole], features["input_ids"])
    np.testing.assert_array_equal(found[:2], found[4:6])
    assert (found[2:4] != found[6:8]).any(axis=1).all()
    pieces = list(estimator(model_fn, tmp_path, 4, 2, **PARAMS).predict(input_fn))
    np.testing.assert_array_equal([row["generated_ids"] for row in pieces], found)
    others = list(estimator(model_fn, tmp_path, 8, seed=1, **PARAMS).predict(input_fn))
    assert (found != [row["generated_ids"] for row in others]).any()


def sentences(count: int = 32, length: int = 12) -> tuple[dict[str, Any], Any]:
    """Cycles through the tokens in steps of one size: after two tokens the next one is known."""
    start, stride = RNG.integers(0, 11, size=(2, count, 1))
    ids = ((start + (1 + stride % 3) * np.arange(length + 1)) % 11).astype(np.int32)
    weights = np.ones((count, length), np.float32)
    weights[::3, -4:] = 0
    return {"input_ids": ids[:, :-1], "token_weights": weights}, ids[:, 1:]


def test_learns_and_evaluates_exactly(tmp_path: Path) -> None:
    features, labels = sentences()
    features, labels = {name: value[:27] for name, value in features.items()}, labels[:27]
    trained = estimator(model_fn, tmp_path, 8, learning_rate=0.02, **PARAMS)
    held_out = rows(features, labels, padded=True)
    before = trained.evaluate(held_out)
    assert before["cross_entropy"] == pytest.approx(np.log(11), rel=0.02)
    trained.train(rows(features, labels, forever=True), max_steps=60)
    after = trained.evaluate(held_out)
    assert after["cross_entropy"] < 0.7 * before["cross_entropy"]
    values = variables(trained)
    params = CharLstmParams(vocab_size=11, embedding_size=8, hidden_units=16)
    logits = run_graph(network(features["input_ids"], params), values)[0].astype(np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    weights = features["token_weights"]
    entropy = -(np.take_along_axis(scores, labels[..., None], 2)[..., 0] * weights).sum() / weights.sum()
    assert after["cross_entropy"] == pytest.approx(entropy, rel=1e-4)
    assert after["bits_per_character"] == pytest.approx(entropy / np.log(2), rel=1e-4)
    assert after["perplexity"] == pytest.approx(np.exp(entropy), rel=1e-4)
    right = ((logits.argmax(2) == labels) * weights).sum() / weights.sum()
    assert after["accuracy"] == pytest.approx(right, rel=1e-4)


def test_replicas_with_different_token_counts_train_as_one(tmp_path: Path) -> None:
    features, labels = sentences(8)
    features["token_weights"][:4, 3:] = 0
    found = []
    for name, replicas in (("one", None), ("two", 2)):
        trained = estimator(model_fn, tmp_path / name, 8, replicas, learning_rate=0.01, gradient_clip=0.1, **PARAMS)
        trained.train(rows(features, labels, forever=True), max_steps=4)
        found.append((trained.last_loss, variables(trained)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_dropout_applies_only_in_training_and_follows_the_seed(values: dict[str, Any]) -> None:
    params = CharLstmParams(**{**vars(SMALL), "dropout": 0.5})
    plain = run_graph(network(IDS), values)[0]
    np.testing.assert_array_equal(run_graph(network(IDS, params), values)[0], plain)
    dropped = [run_graph(network(IDS, params, training=True), values)[0] for _ in range(2)]
    np.testing.assert_array_equal(*dropped)
    assert not np.allclose(dropped[0], plain)


def test_rehearsal_finds_nothing_a_tpu_rejects(tmp_path: Path) -> None:
    features, labels = sentences(16, 5)
    findings = rehearsed(model_fn, tmp_path, features, labels, dropout=0.1, **PARAMS)
    assert [str(finding) for finding in findings] == []


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ({"ids": np.zeros([2, 3], np.int32)}, None, 'must contain "input_ids", got ids'),
        (np.zeros([2, 3], np.float32), None, "input_ids must be integers"),
        (np.zeros([2], np.int32), None, r"\[batch, length\]"),
        (np.zeros([2, 3], np.int32), None, "targets=True"),
        (np.zeros([2, 3], np.int32), np.zeros([2], np.int32), "labels must be the next tokens"),
    ],
)
def test_rejects_features_and_labels_that_are_not_tokens(features: Any, labels: Any, message: str) -> None:
    with tf.Graph().as_default():
        features = tf.nest.map_structure(tf.constant, features)
        labels = None if labels is None else tf.constant(labels)
        with pytest.raises(UsageError, match=message):
            model_fn(features, labels, ModeKeys.TRAIN, {"vocab_size": 11})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "'vocab_size'"),
        ({"hidden_units": 0}, "hidden_units"),
        ({"temperature": -1}, "temperature"),
        ({"dropout": 1}, "dropout"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CharLstmParams.from_params(params if not params else {"vocab_size": 5, **params})
