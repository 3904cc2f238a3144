import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.programs import estimator, first_values, random_like, rehearsed, rows, run_graph, variables
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.tiny_lm import TinyLmParams, model_fn, tiny_lm

RNG = np.random.default_rng(9)
SHAPE: dict[str, Any] = {"vocab_size": 13, "hidden_size": 8, "num_layers": 2, "num_heads": 2}
erf = np.vectorize(math.erf)
IDS = RNG.integers(0, 13, size=(2, 7)).astype(np.int32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 3]], np.int32)
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 1, 0, 1, 2, 0, 1]], np.int32)
KINDS: list[dict[str, Any]] = [
    {},
    {"position_embedding": "learned", "max_positions": 9},
    {"tie_embeddings": False, "mlp_size": 5},
]


def logits_of(
    values: Any, params: TinyLmParams, ids: Any = IDS, segments: Any = SEGMENTS, positions: Any = POSITIONS
) -> Any:
    return run_graph(network(params, ids, segments, positions), values)[0]


def network(params: TinyLmParams, ids: Any = IDS, segments: Any = SEGMENTS, positions: Any = POSITIONS) -> Any:
    return lambda: tiny_lm(tf.constant(ids), tf.constant(segments), tf.constant(positions), params, training=False)


def params_of(kind: dict[str, Any]) -> TinyLmParams:
    return TinyLmParams.from_params({**SHAPE, **kind})


@functools.cache
def values_of(kind: int) -> dict[str, Any]:
    params = params_of(KINDS[kind])
    return random_like(first_values(network(params)))


def by_hand(v: dict[str, Any], params: TinyLmParams, ids: Any, positions: Any) -> Any:
    """The logits of one document [length], with loops in numpy."""
    heads, size = params.num_heads, params.hidden_size // params.num_heads

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * v[f"{name}/gamma"] + v[f"{name}/beta"]

    def dense(x: Any, name: str) -> Any:
        return x @ v[f"{name}/kernel"] + v[f"{name}/bias"]

    def turned(x: Any, position: int) -> Any:
        if params.position_embedding == "learned":
            return x
        angles = position / 10_000 ** (np.arange(size // 2) / (size // 2))
        pairs = (x[: size // 2] + 1j * x[size // 2 :]) * np.exp(1j * angles)
        return np.r_[pairs.real, pairs.imag]

    x = v["embedding"][ids].astype(np.float64)
    if params.position_embedding == "learned":
        x = x + v["positions"][positions]
    for block in range(params.num_layers):
        qkv = dense(norm(x, f"block_{block}/attention_norm"), f"block_{block}/qkv").reshape(len(ids), 3, heads, size)
        out = np.zeros((len(ids), heads, size))
        for h in range(heads):
            for i in range(len(ids)):
                query = turned(qkv[i, 0, h], positions[i])
                scores = np.array([query @ turned(qkv[j, 1, h], positions[j]) for j in range(i + 1)]) / np.sqrt(size)
                shares = np.exp(scores - scores.max())
                out[i, h] = (shares / shares.sum()) @ qkv[: i + 1, 2, h]
        x = x + dense(out.reshape(len(ids), -1), f"block_{block}/attended")
        inner = dense(norm(x, f"block_{block}/mlp_norm"), f"block_{block}/mlp_in")
        x = x + dense(inner * 0.5 * (1 + erf(inner / np.sqrt(2))), f"block_{block}/mlp_out")
    x = norm(x, "norm")
    return x @ (v["embedding"].T if params.tie_embeddings else v["logits/kernel"])


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_each_document_of_a_row_gets_the_logits_it_gets_alone(kind: int) -> None:
    """Segments, positions, causality and every layer at once: each document by itself, in numpy."""
    params, values = params_of(KINDS[kind]), values_of(kind)
    found = logits_of(values, params)
    assert (found.shape, found.dtype.name) == ((2, 7, 13), "float32")
    for row in range(2):
        for segment in range(1, 4):
            places = np.flatnonzero(SEGMENTS[row] == segment)
            if len(places):
                expected = by_hand(values, params, IDS[row, places], np.arange(len(places)))
                np.testing.assert_allclose(found[row, places], expected, rtol=1e-3, atol=1e-4)


def test_other_segments_and_later_tokens_do_not_change_logits() -> None:
    params, values = params_of({}), values_of(0)
    before = logits_of(values, params)
    others = IDS.copy()
    others[0, 3:] = (others[0, 3:] + 1) % 13
    others[1, 3] = (others[1, 3] + 1) % 13
    after = logits_of(values, params, others)
    same = np.ones((2, 7), bool)
    same[0, 3:] = False
    same[1, 3:5] = False
    np.testing.assert_array_equal(before[same], after[same])
    assert (np.abs(before - after).max(axis=2)[~same] > 1e-3).all()


def test_initial_values_have_their_scales_and_count() -> None:
    params = TinyLmParams(vocab_size=101, hidden_size=64, num_layers=2, num_heads=4)
    ids = tf.zeros([1, 4], tf.int32).numpy()
    values = first_values(network(params, ids, ids, ids))
    assert values["embedding"].std() == pytest.approx(0.02, rel=0.05)
    assert values["block_1/qkv/kernel"].std() == pytest.approx(0.02, rel=0.05)
    assert values["block_1/mlp_out/kernel"].std() == pytest.approx(0.02 / 2, rel=0.05)
    assert sum(value.size for value in values.values()) == 101 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64
    entropy = -np.log(1 / 101)
    logits, _ = run_graph(network(params), values)
    assert np.log(np.exp(logits).sum(-1)).mean() == pytest.approx(entropy, rel=0.02)


def test_bfloat16_logits_are_close_and_variables_stay_float32() -> None:
    params = params_of({"precision": "bfloat16"})
    values = values_of(0)
    exact, near = logits_of(values, params_of({})), logits_of(values, params)
    assert near.dtype.name == "float32"
    assert 1e-4 < np.abs(near - exact).max() < 0.1 * np.abs(exact).max()
    assert {value.dtype.name for value in first_values(network(params)).values()} == {"float32"}


def packed(count: int) -> tuple[dict[str, Any], Any]:
    """Rows of two documents and padding; each document counts upwards from some token."""
    starts = RNG.integers(0, 13, size=(count, 2))
    lengths = np.stack([RNG.integers(3, 7, size=count), RNG.integers(3, 6, size=count)], axis=1)
    ids, segments, positions = (np.zeros((count, 12), np.int32) for _ in range(3))
    for row in range(count):
        place = 0
        for document in range(2):
            part = slice(place, place + lengths[row, document])
            positions[row, part] = np.arange(lengths[row, document])
            ids[row, part] = (starts[row, document] + positions[row, part]) % 13
            segments[row, part] = document + 1
            place = part.stop
    labels = np.roll(ids, -1, axis=1)
    weights = ((np.roll(segments, -1, axis=1) == segments) & (segments > 0)).astype(np.float32)
    weights[:, -1] = 0
    features = {"input_ids": ids, "segment_ids": segments, "positions": positions, "token_weights": weights}
    return features, np.where(weights > 0, labels, 0).astype(np.int32)


def test_learns_evaluates_exactly_and_predicts(tmp_path: Path) -> None:
    features, labels = packed(21)
    trained = estimator(model_fn, tmp_path, 8, learning_rate=0.01, **{**SHAPE, "hidden_size": 32})
    trained.train(rows(features, labels, forever=True), max_steps=60)
    held_out = rows(features, labels, padded=True)
    found = trained.evaluate(held_out)
    assert found["accuracy"] > 0.9
    assert found["bits_per_token"] == pytest.approx(found["cross_entropy"] / np.log(2), rel=1e-5)
    predictions = {
        name: np.array([row[name] for row in trained.predict(held_out)])
        for name in ("log_probabilities", "next_ids", "next_log_probabilities")
    }
    shapes = {name: value.shape for name, value in predictions.items()}
    assert shapes == {"log_probabilities": (21, 11), "next_ids": (21, 12), "next_log_probabilities": (21, 13)}
    weights = features["token_weights"]
    # The predicted log probabilities of next tokens add up to the evaluation's cross entropy.
    scores = predictions["log_probabilities"]
    assert -scores.sum() / weights.sum() == pytest.approx(found["cross_entropy"], rel=1e-4)
    np.testing.assert_array_equal(scores[weights[:, :-1] == 0], 0)
    right = (predictions["next_ids"] == labels) * weights
    assert right.sum() / weights.sum() == pytest.approx(found["accuracy"], rel=1e-5)
    last = np.array([np.flatnonzero(row)[-1] for row in features["segment_ids"]])
    best = predictions["next_log_probabilities"].argmax(1)
    np.testing.assert_array_equal(best, predictions["next_ids"][np.arange(21), last])
    np.testing.assert_allclose(np.exp(predictions["next_log_probabilities"]).sum(1), 1, rtol=1e-4)


# The mean over tokens on replicas is char_lstm's, which has a test like this.
@pytest.mark.matrix
def test_replicas_train_as_one(tmp_path: Path) -> None:
    features, labels = packed(8)
    features["token_weights"][:4, 2:] = 0
    found = []
    for name, replicas in (("one", None), ("two", 2)):
        trained = estimator(model_fn, tmp_path / name, 8, replicas, **{**SHAPE, "num_layers": 1})
        trained.train(rows(features, labels, forever=True), max_steps=3)
        found.append((trained.last_loss, variables(trained)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name in ("embedding", "block_0/qkv/kernel", "norm/gamma"):
        np.testing.assert_allclose(found[1][1][name], found[0][1][name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_row_without_segments_and_positions_is_one_document() -> None:
    def build(**features: Any) -> Any:
        given = {"input_ids": IDS, **features}
        spec: Any = model_fn(tf.nest.map_structure(tf.constant, given), None, ModeKeys.PREDICT, SHAPE)
        return spec.predictions["log_probabilities"]

    plain, _ = run_graph(build, values_of(0))
    ones, places = np.ones_like(IDS), np.zeros_like(IDS) + np.arange(7, dtype=np.int32)
    told, _ = run_graph(functools.partial(build, segment_ids=ones, positions=places), values_of(0))
    np.testing.assert_array_equal(plain, told)
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
    masked, _ = run_graph(functools.partial(build, attention_mask=mask), values_of(0))
    np.testing.assert_array_equal(masked[1, 3:], 0)
    np.testing.assert_array_equal(masked[1, :3], plain[1, :3])


def test_rehearsal_finds_nothing_a_tpu_rejects(tmp_path: Path) -> None:
    features, labels = packed(16)
    findings = rehearsed(
        model_fn, tmp_path, features, labels, **{**SHAPE, "num_layers": 1}, dropout=0.1, precision="bfloat16"
    )
    assert [str(finding) for finding in findings] == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_heads": 3}, "num_heads must be a divisor of hidden_size 8, got 3"),
        ({"num_heads": 8}, "num_heads must be such that hidden_size 8 / num_heads is even"),
        ({"position_embedding": "none"}, "one of rotary, learned"),
        ({"precision": "float16"}, "one of float32, bfloat16"),
        ({"mlp_size": 0}, "mlp_size must be None, or 1 or more"),
        ({"num_layers": 0}, "num_layers must be 1 or more"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        params_of(params)


def test_rejects_rows_longer_than_the_learned_positions() -> None:
    params = params_of({"position_embedding": "learned", "max_positions": 6})
    with tf.Graph().as_default(), pytest.raises(UsageError, match="got 7 tokens, expected at most max_positions=6"):
        network(params)()


@pytest.mark.parametrize(("ids", "labels"), [(2**32 + 1, 1), (1, 2**32 + 1)])
def test_labels_and_ids_beyond_int32_are_no_tokens(ids: int, labels: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside the valid range|is not in"):
        run_graph(
            lambda: (
                model_fn(
                    tf.constant(ids, tf.int64, [2, 7]), tf.constant(labels, tf.int64, [2, 7]), ModeKeys.EVAL, SHAPE
                ).loss
            )
        )
