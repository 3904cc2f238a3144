"""The user's own models: functions and classes."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.datasets import write_dataset
from tests.helpers.libtpu import needs_libtpu
from tests.train.jobs import newest_step, read_json, train_job
from tpudata.format import Feature

# A linear model as a user would write it; it saves its params.
OWN_MODEL = """
import json
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    with open("params.json", "w") as file:
        json.dump({key: value for key, value in params.items()}, file)
    pixels = tf.reshape(tf.cast(features["image"], tf.float32) / 255, [-1, 6 * 4])
    kernel = tf.compat.v1.get_variable("kernel", [24, params["num_classes"]])
    logits = tf.matmul(pixels, kernel)
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    step = tf.compat.v1.train.get_or_create_global_step()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params.get("learning_rate", 0.1))
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))
"""


def test_passes_the_options_to_the_users_model(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_linear_model.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    flags = ["--train-steps=3", "--image-size=6x4", "--learning-rate=0.25", "--mode=train_and_eval"]
    assert train_job(digits_dataset, tmp_path / "m", *flags, model="own_linear_model:model_fn") == 0
    assert read_json(tmp_path / "params.json") == {
        "batch_size": 32,
        "learning_rate": 0.25,
        "num_classes": 10,
        "seed": 0,
        "use_tpu": False,
    }
    assert set(read_json(tmp_path / "m" / "evaluation.json")) == {"global_step", "loss", "records", "split"}


# A detector with padded boxes, and several classes as labels.
OWN_DETECTOR = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    boxes = features["objects/bbox"]
    assert boxes.shape[1:] == (3, 4) and params["num_classes"] == 2
    kernel = tf.compat.v1.get_variable("kernel", [12, 2])
    logits = tf.matmul(tf.reshape(boxes, [-1, 12]), kernel)
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"count": features["objects/count"], "logits": logits})
    assert labels.shape[1:] == (2,)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""


def test_the_users_model_reads_padded_lists_and_several_classes(
    own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "own_detector.py").write_text(OWN_DETECTOR)
    rows = [{"objects/bbox": [0.5] * 4 * (n % 4), "label": [n % 2] * (n % 2)} for n in range(6)]
    features = [
        Feature("objects/bbox", "float", "float32", (None, 4)),
        Feature("label", "int64", "int64", (None,), num_classes=2),
    ]
    data = own_models / "boxes"
    write_dataset(str(data), {"train": rows, "validation": rows}, features, layout="boxes", shards=1)
    flags = ["--train-steps=3", "--batch-size=2", "--pad=objects/*=3"]
    assert train_job(data, own_models / "m", *flags, model="own_detector:model_fn") == 0
    assert train_job(data, own_models / "m", *flags, "--mode=predict", model="own_detector:model_fn") == 0
    lines = (own_models / "m" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["predictions"]["count"] for line in lines] == [0, 1, 2, 3, 0, 1]
    assert [json.loads(line)["label"] for line in lines] == [[], [1], [], [1], [], [1]]
    capsys.readouterr()
    assert train_job(data, own_models / "n", *flags, model="iris_mlp") == 2
    assert "iris_mlp takes one class of each record as its label (got 'label', int64" in capsys.readouterr().err


# A user's classes: one has model_fn as a method, and the other's objects are callable.
OWN_CLASSES = (
    OWN_MODEL
    + """
class Linear:
    def __init__(self, params):
        self.units = params["units"]

    def model_fn(self, features, labels, mode, params):
        assert self.units == params["units"] == 3
        return model_fn(features, labels, mode, params)

class Called(Linear):
    model_fn = property()

    def __call__(self, features, labels, mode, params):
        return Linear.model_fn(self, features, labels, mode, params)

class Nothing:
    def __init__(self, params):
        pass

class NoParams:
    def model_fn(self, features, labels, mode, params): ...

class TooMany(Linear):
    def __init__(self, params, more): ...
"""
)


def test_accepts_a_class_that_makes_a_model_from_params(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "own_classes.py").write_text(OWN_CLASSES)
    flags = ["--mode=train", "--train-steps=2", "--image-size=6x4", "--param=units=3"]
    for name in ("Linear", "Called"):
        assert train_job(digits_dataset, own_models / name, *flags, model=f"own_classes:{name}") == 0
        assert newest_step(own_models / name) == 2
    assert train_job(digits_dataset, own_models / "m", *flags, model="own_classes:Nothing") == 2
    assert "its objects need a method model_fn(features, labels, mode, params), or __call__" in capsys.readouterr().err
    for name in ("NoParams", "TooMany"):
        assert train_job(digits_dataset, own_models / "m", *flags, model=f"own_classes:{name}") == 2
        assert f"own_classes:{name}: its __init__ must take params, a dict, and nothing else" in capsys.readouterr().err
    assert not (own_models / "m").exists()


# Its loss depends only on the records that it was fed.
FINGERPRINT_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode):
    rows = tf.cast(tf.range(1, tf.shape(labels)[0] + 1), tf.float32)
    loss = tf.reduce_sum(tf.cast(labels, tf.float32) * tf.sin(rows))
    kernel = tf.compat.v1.get_variable("kernel", [])
    return TPUEstimatorSpec(mode, loss=loss + 0 * kernel, train_op=tf.compat.v1.train.get_global_step().assign_add(1))
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose modules can be named as models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_resumed_training_gets_the_next_batch(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "fingerprint_model.py").write_text(FINGERPRINT_MODEL)

    def loss(folder: str, steps: int, *flags: str) -> str:
        """Return the result of the last step; in the same folder, training continues."""
        flags = ("--mode=train", f"--train-steps={steps}", *flags)
        assert train_job(digits_dataset, own_models / folder, *flags, model="fingerprint_model:model_fn") == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("train  "))
        return row.split()[4]

    resumed = [loss("resumed", steps) for steps in (1, 3)]
    assert len(set(resumed)) == 2
    # An uninterrupted run has the same loss at this step.
    assert loss("through", 3) == resumed[1]
    assert loss("other seed", 3, "--seed=1") != resumed[1]


ASKING_MODEL = """
import tensorflow as tf
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec


def model_fn(features, labels, mode):
    image = tf.cast(features["image"], tf.float32)
    mean = tf.numpy_function(lambda x: x.mean(), [image], tf.float32)
    weight = tf.compat.v1.get_variable("weight", [])
    loss = tf.reshape(mean, []) * weight
    optimizer = CrossShardOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf.compat.v1.train.get_global_step()))
"""


BAD_MODELS = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def nothing(features, labels, mode):
    tf.compat.v1.get_variable("kernel", [])

def no_loss(features, labels, mode):
    return TPUEstimatorSpec(mode)

def asks_for_more(features, images):
    pass

def faulty(features, labels, mode):
    return {}["no such key"]
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "model_fn must return a TPUEstimatorSpec or an EstimatorSpec, got NoneType"),
        ("no_loss", "TPUEstimatorSpec has no loss"),
        ("asks_for_more", "unknown arguments (got ['images']"),
    ],
)
def test_rejects_a_model_that_breaks_the_contract(
    name: str, message: str, digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "bad_models.py").write_text(BAD_MODELS)
    assert train_job(digits_dataset, own_models / "m", model=f"bad_models:{name}") == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("tpudata: error: ")
    assert message in last
    assert not (own_models / "m").exists()


def test_an_error_in_a_model_keeps_its_traceback(digits_dataset: Path, own_models: Path) -> None:
    (own_models / "bad_models.py").write_text(BAD_MODELS)
    with pytest.raises(KeyError, match="no such key"):
        train_job(digits_dataset, own_models / "m", model="bad_models:faulty")


# A TPU would reject nothing of it, and it compiles quickly.
PLAIN_MODEL = """
import tensorflow as tf
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec

def model_fn(features, labels, mode):
    mean = tf.reduce_mean(tf.cast(features["image"], tf.float32), [1, 2, 3])
    weight = tf.compat.v1.get_variable("weight", [])
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"mean": mean * weight})
    loss = tf.reduce_mean(mean * weight)
    optimizer = CrossShardOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf.compat.v1.train.get_global_step()))
"""


@pytest.mark.parametrize("mode", ["train_and_eval", "train", pytest.param("eval", marks=pytest.mark.matrix), "predict"])
def test_a_rehearsal_of_a_plain_model_finds_and_writes_nothing(
    mode: str, digits_dataset: Path, own_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own_models / "plain_model.py").write_text(PLAIN_MODEL)
    flags = ["--rehearse", "--use_tpu=true", f"--mode={mode}"]
    with caplog.at_level("INFO"):
        assert train_job(digits_dataset, own_models / "m", *flags, model="plain_model:model_fn") == 0
    names = {"train_and_eval": "train, eval", "predict": "infer"}.get(mode, mode)
    assert f"Rehearsal of {names}: nothing that a TPU would reject." in caplog.text
    assert not (own_models / "m").exists()


@needs_libtpu
def test_a_rehearsal_for_a_tpu_prints_the_compilers_costs(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "plain_model.py").write_text(PLAIN_MODEL)
    stage = {"records_per_second": 500.0, "cpu_seconds_per_record": 0.001}
    (own_models / "bench.json").write_text(json.dumps({"stages": [stage], "cores": 2}))
    flags = ["--rehearse", "--tpu=v4-8", "--mode=train", "--feeding=bench.json", "--json"]
    assert train_job(digits_dataset, own_models / "m", *flags, model="plain_model:model_fn") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["findings"] == []
    tpu = printed["tpu"]
    assert (tpu["name"], tpu["chips"], tpu["hosts"], tpu["replicas"], tpu["effort"]) == ("v4-8", 4, 1, 4, "quick")
    assert tpu["source"].startswith("https://docs.cloud.google.com/tpu/docs/v4")
    (step,) = printed["steps"]
    assert (step["mode"], step["batch_size"], step["loop_steps"]) == ("train", 32, 10)
    assert step["least_seconds"] == max(step["flops"] / 275e12, step["bytes_accessed"] / 1200e9)
    needed = 32 / step["least_seconds"]
    assert step["records_per_second_per_host"] == pytest.approx(needed)
    assert step["feeding"]["is_input_bound"] is True
    assert step["feeding"]["host_cores"] == math.ceil(needed * 0.001)
    assert not (own_models / "m").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tpu=v5e-7"], "--tpu: there is no TPU 'v5e-7'"),
        (["--tpu=v5e-8", "--feeding=bench.jsn"], "bench.jsn"),
    ],
)
def test_a_rehearsal_rejects_unknown_tpus_and_missing_reports(
    flags: list[str], message: str, digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "plain_model.py").write_text(PLAIN_MODEL)
    assert train_job(digits_dataset, own_models / "m", "--rehearse", *flags, model="plain_model:model_fn") != 0
    assert message in capsys.readouterr().err


def test_a_rehearsal_lists_what_a_tpu_would_reject(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "asking_models.py").write_text(ASKING_MODEL)
    flags = ["--rehearse", "--batch-size=20"]
    assert train_job(digits_dataset, own_models / "m", *flags, model="asking_models:model_fn") == 1
    error = capsys.readouterr().err
    assert "A TPU would reject 4 things:" in error
    for mode in ("train", "eval"):
        name = "train" if mode == "train" else "eval"
        assert f"{mode}: batch size: TPUEstimator({name}_batch_size=20) cannot be split over 8 replicas" in error
        assert re.search(rf"  {mode}: .*asking_models\.py:8: PyFunc: runs Python .* Fix: ", error)
