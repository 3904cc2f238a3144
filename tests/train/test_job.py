from __future__ import annotations

import json
import math
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.helpers.datasets import write_undecodable
from tests.helpers.digits import write_digits
from tests.helpers.sequences import VOCAB_SIZE, write_sequences
from tpudata.cli import main
from tpudata.estimator.devices.topology import Topology

# A linear model, as a person would write it in a file of their own; it saves the params that it was given.
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


def _train(data: Path, model_dir: Path, *flags: str, model: str = "mnist_cnn") -> int:
    common = [f"--model={model}", f"--data={data}", f"--model-dir={model_dir}", "--batch-size=32", "--iterations=10"]
    return main(["train", *common, *flags])


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _step(model_dir: Path) -> int:
    return int(tf.train.load_variable(tf.train.latest_checkpoint(str(model_dir)), "global_step"))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token sequences; read only."""
    return write_sequences(tmp_path_factory.mktemp("sequences"), {"train": 64, "validation": 20})


@pytest.fixture(scope="module")
def model_dir(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mnist_cnn after 40 steps, evaluated, and the predictions of the whole validation split; read only."""
    folder = tmp_path_factory.mktemp("model")
    assert _train(digits_dataset, folder, "--train-steps=40", "--seed=3") == 0
    assert _train(digits_dataset, folder, "--mode=predict", "--eval-batch-size=25") == 0
    return folder


def test_the_metrics_are_those_of_the_predictions(model_dir: Path) -> None:
    metrics = _json(model_dir / "evaluation.json")
    lines = [json.loads(line) for line in (model_dir / "predictions.jsonl").read_bytes().splitlines()]
    assert (metrics["global_step"], metrics["records"], metrics["split"]) == (40, 90, "validation")
    assert len(lines) == 90
    right = sum(line["predictions"]["classes"] == line["label"] for line in lines)
    assert metrics["accuracy"] == pytest.approx(right / 90)
    losses = [-math.log(line["predictions"]["probabilities"][line["label"]]) for line in lines]
    # 90 records in batches of 32: the padding of the last one must not count.
    assert metrics["cross_entropy"] == pytest.approx(sum(losses) / 90, rel=1e-4)
    assert right / 90 > 0.6


def test_training_resumes_and_stops_at_train_steps(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert _train(digits_dataset, folder, "--mode=train", "--train-steps=5") == 0
    assert (_step(folder), (folder / "evaluation.json").exists()) == (5, False)
    assert _train(digits_dataset, folder, "--mode=train", "--train-steps=12", "--save-checkpoints-steps=4") == 0
    assert _step(folder) == 12
    capsys.readouterr()
    assert _train(digits_dataset, folder, "--mode=train", "--train-steps=12") == 0
    assert _step(folder) == 12
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("train  "))
    assert row[:5] == ["train", "train", "0", "12", "-"]
    assert _train(digits_dataset, folder, "--mode=train", "--train-steps=7") == 0
    assert f"nothing to train: {folder} is at step 12, and --train-steps is 7\n" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_model(model_dir: Path, digits_dataset: Path, tmp_path: Path) -> None:
    assert _train(digits_dataset, tmp_path, "--train-steps=40", "--seed=3") == 0
    assert _json(tmp_path / "evaluation.json") == _json(model_dir / "evaluation.json")


def test_the_configuration_is_printed_and_saved(
    model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = (model_dir / "train_config.json").read_text()
    saved = json.loads(raw)
    assert raw == json.dumps(saved, indent=1, sort_keys=True) + "\n"
    assert saved["options"]["train_steps"] == 40
    assert saved["options"]["learning_rate"] is None
    assert saved["params"] == {"num_classes": 10, "seed": 3}
    assert saved["versions"]["tensorflow"] == tf.__version__
    assert saved["dataset"]["records"] == {"train": 200, "validation": 90}
    before = _json(model_dir / "train_config.json")
    assert _train(digits_dataset, model_dir, "--mode=eval", "--eval-split=train") == 0
    shown = capsys.readouterr().out
    assert 'eval_split="train"' in shown
    assert f"tensorflow {tf.__version__}" in shown
    assert _json(model_dir / "train_config.json") == before
    assert _json(model_dir / "eval_config.json")["options"]["mode"] == "eval"
    assert next(line.split() for line in shown.splitlines() if line.startswith("evaluate"))[:4] == [
        "evaluate",
        "train",
        "200",
        "40",
    ]
    # The fixture is shared: leave what it promises.
    assert _train(digits_dataset, model_dir, "--mode=eval") == 0


def test_some_predictions_into_a_file_of_ones_own(model_dir: Path, digits_dataset: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    flags = ["--mode=predict", "--eval-split=train", "--num-predictions=7", f"--output={path}"]
    assert _train(digits_dataset, model_dir, *flags) == 0
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["filename"] for line in lines] == [f"{number:04d}.png" for number in range(7)]


def test_a_model_of_ones_own(digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_linear_model.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    flags = ["--train-steps=3", "--image-size=6x4", "--learning-rate=0.25", "--mode=train_and_eval"]
    assert _train(digits_dataset, tmp_path / "m", *flags, model="own_linear_model:model_fn") == 0
    assert _json(tmp_path / "params.json") == {
        "batch_size": 32,
        "learning_rate": 0.25,
        "num_classes": 10,
        "seed": 0,
        "use_tpu": False,
    }
    assert set(_json(tmp_path / "m" / "evaluation.json")) == {"global_step", "loss", "records", "split"}


# A class of one's own; its object is told the params, and another one is called itself.
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


def test_a_class_of_ones_own(digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_models / "own_classes.py").write_text(OWN_CLASSES)
    flags = ["--mode=train", "--train-steps=2", "--image-size=6x4", "--param=units=3"]
    for name in ("Linear", "Called"):
        assert _train(digits_dataset, own_models / name, *flags, model=f"own_classes:{name}") == 0
        assert _step(own_models / name) == 2
    assert _train(digits_dataset, own_models / "m", *flags, model="own_classes:Nothing") == 2
    assert "its objects need a method model_fn(features, labels, mode, params), or __call__" in capsys.readouterr().err
    for name in ("NoParams", "TooMany"):
        assert _train(digits_dataset, own_models / "m", *flags, model=f"own_classes:{name}") == 2
        assert f"own_classes:{name}: its __init__ must take params, a dict, and nothing else" in capsys.readouterr().err
    assert not (own_models / "m").exists()


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("char_lstm", {"hidden_units": 24, "learning_rate": 0.02, "schedule": "cosine", "warmup_steps": 2}),
        ("tiny_lm", {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "learning_rate": 0.01}),
    ],
)
def test_language_models_learn_what_the_dataset_tells_them(
    model: str, params: dict[str, Any], sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--param={name}={value}" for name, value in params.items()]
    assert _train(sequences, tmp_path, *words, "--train-steps=60", model=model) == 0
    given = _json(tmp_path / "train_config.json")["params"]
    assert given["vocab_size"] == VOCAB_SIZE
    assert given.get("decay_steps") == (60 if "schedule" in params else None)
    bits = "bits_per_character" if model == "char_lstm" else "bits_per_token"
    # Evenly distributed, they would take 3.6 bits.
    assert _json(tmp_path / "evaluation.json")[bits] < 2.5
    assert re.search(rf"^also: cross_entropy \d\.\d{{4}}, {bits} \d", capsys.readouterr().out, re.MULTILINE)


def test_a_parameter_that_a_model_does_not_have(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(digits_dataset, tmp_path / "m", "--param=drop_out=0.3") == 2
    error = capsys.readouterr().err
    assert "mnist_cnn has no parameter 'drop_out'" in error
    assert "Did you mean 'dropout'?" in error
    assert not (tmp_path / "m").exists()


# Nothing in it that a TPU would reject, and little to compile.
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


@pytest.mark.parametrize(
    ("mode", "model"),
    [("train_and_eval", "mnist_cnn")] + [(mode, "plain_model:model_fn") for mode in ("train", "eval", "predict")],
)
def test_a_rehearsal_finds_nothing_and_writes_nothing(
    mode: str, model: str, digits_dataset: Path, own_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own_models / "plain_model.py").write_text(PLAIN_MODEL)
    flags = ["--rehearse", "--use_tpu=true", f"--mode={mode}"]
    with caplog.at_level("INFO"):
        assert _train(digits_dataset, own_models / "m", *flags, model=model) == 0
    names = {"train_and_eval": "train, eval", "predict": "infer"}.get(mode, mode)
    assert f"Rehearsal of {names}: nothing that a TPU would reject." in caplog.text
    assert not (own_models / "m").exists()


def test_a_rehearsal_lists_what_a_tpu_would_reject(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "asking_models.py").write_text(ASKING_MODEL)
    flags = ["--rehearse", "--batch-size=20"]
    assert _train(digits_dataset, own_models / "m", *flags, model="asking_models:model_fn") == 1
    error = capsys.readouterr().err
    assert "A TPU would reject 4 things:" in error
    for mode in ("train", "eval"):
        name = "train" if mode == "train" else "eval"
        assert f"{mode}: batch size: TPUEstimator({name}_batch_size=20) cannot be split over 8 replicas" in error
        assert re.search(rf"  {mode}: .*asking_models\.py:8: PyFunc: runs Python .* Fix: ", error)


@pytest.mark.parametrize(
    ("flags", "name"), [(["--batch-size=20"], "train"), (["--batch-size=16", "--eval-batch-size=9"], "eval")]
)
def test_a_batch_that_the_cores_cannot_split_is_told_in_a_line(
    flags: list[str],
    name: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cores = types.SimpleNamespace(num_replicas_in_sync=8)
    monkeypatch.setattr("tpudata.estimator.tpu_estimator.tpu_topology", lambda _: Topology(cores, is_tpu=True))
    code = _train(digits_dataset, tmp_path / "model", "--use-tpu", *flags)
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert re.fullmatch(rf"tpudata.*: error: .*{name}_batch_size=\d+\) cannot be split over 8 replicas: .*", error)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("flags", "num_classes", "label_offset"),
    [([], 10, 1), (["--param=label_offset=0"], 11, 0), (["--param=num_classes=12"], 12, 1)],
)
def test_a_model_is_given_the_offset_of_the_labels(
    tmp_path: Path, flags: list[str], num_classes: int, label_offset: int
) -> None:
    write_digits(tmp_path / "d", {"train": 40, "validation": 20}, label_offset=1)
    assert _train(tmp_path / "d", tmp_path / "m", "--train-steps=1", *flags) == 0
    params = _json(tmp_path / "m" / "train_config.json")["params"]
    assert (params["num_classes"], params["label_offset"]) == (num_classes, label_offset)
    assert _train(tmp_path / "d", tmp_path / "m", "--mode=predict", *flags) == 0
    lines = [json.loads(line) for line in (tmp_path / "m" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 20
    assert all(line["label_name"] == str(line["label"] - 1) for line in lines)
    assert all(len(line["predictions"]["probabilities"]) == num_classes for line in lines)


def test_an_offset_that_the_labels_do_not_have_is_rejected(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(digits_dataset, tmp_path / "m", "--param=label_offset=1") == 2
    assert "is above the first label of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["--eval-split=test"],
            1,
            "no split 'test' (it has train, validation). Pass --eval-split train or validation, train without evaluation"
            " (--mode train), or convert again with --split",
        ),
        (["--mode=predict", "--eval-split=test"], 1, "Pass --eval-split train or validation, or convert again"),
        (["--mode=train", "--train-split=test"], 1, "Pass --train-split train or validation, or convert again"),
        (["--mode=eval"], 2, "has no checkpoint. Train first"),
        (["--mode=predict"], 2, "has no checkpoint. Train first"),
        (["--use-tpu", "--master=grpc://127.0.0.1:9"], 1, "nothing answers at 'grpc://127.0.0.1:9'"),
        (["--master=grpc://127.0.0.1:9"], 2, "--master requires --use-tpu"),
        (["--learning-rate=-1"], 2, "--learning-rate must be a number above 0, got -1.0"),
        (["--model=./own.py"], 2, "or package.module:function). Pass yours as own:model_fn."),
        (["--model=pkg/own.py:f"], 2, "names a file (expected package.module:function). Name the module: pkg.own:f."),
        (["--model=own.f"], 2, "Pass yours as own:f."),
    ],
)
def test_what_cannot_be_done_writes_nothing(
    flags: list[str], code: int, message: str, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert _train(digits_dataset, folder, *flags) == code
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_nothing_is_written_over_the_dataset(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(digits_dataset, tmp_path / "data"))
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    (tmp_path / "file").touch()
    predict = ["--mode=predict", f"--output={data}/../data/manifest.json"]
    for folder, flags, message in (
        (model_dir, predict, "is in the dataset's folder"),
        (data, ["--train-steps=1"], "is the dataset's folder. Pass another one."),
        (tmp_path / "file", ["--train-steps=1"], "is a file. Pass a folder"),
    ):
        assert _train(data, folder, *flags) == 2
        assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    # A model may live below.
    assert _train(data, data / "model", "--mode=train", "--train-steps=1") == 0
    assert _train(data, data / "model", "--mode=predict", f"--output={data}/model/p.csv") == 0


def test_what_cannot_be_written_is_noticed_before_anything_is_done(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    inside, model_dir = tmp_path / "file" / "inside", tmp_path / "m"
    for folder, flags, code, message in (
        (inside, ["--mode=train"], 1, f"{inside} could not be written: Not a directory"),
        (model_dir, ["--mode=predict", f"--output={inside}.csv"], 1, f"{inside}.csv could not be written: Not a"),
        (model_dir, ["--mode=export", f"--output={inside}"], 1, f"{inside} could not be written: Not a directory"),
        (model_dir, ["--mode=predict", f"--output={tmp_path / 'folder'}"], 2, "is a folder. Pass a file in it"),
        (model_dir, ["--mode=export", f"--output={tmp_path / 'file'}"], 2, "is a file. Pass a folder"),
    ):
        # There is no such model either, which comes out next.
        assert _train(digits_dataset, folder, *flags, model="nowhere:model_fn") == code
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_unknown_models(digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _train(digits_dataset, tmp_path, model="mnist_cn") == 2
    assert "mnist_cnn" in capsys.readouterr().err
    assert _train(digits_dataset, tmp_path, model="nowhere.to.be_found:model_fn") == 2
    assert "nowhere" in capsys.readouterr().err


def test_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _train(tmp_path, tmp_path / "m") == 1
    assert "has no manifest.json" in capsys.readouterr().err


# Its loss tells which records it was fed, whatever it has learned.
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


def test_resumed_training_is_fed_the_very_next_batch(
    digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "fingerprint_model.py").write_text(FINGERPRINT_MODEL)

    def loss(folder: str, steps: int, *flags: str) -> str:
        """Of the last step; in the same folder, training goes on."""
        flags = ("--mode=train", f"--train-steps={steps}", *flags)
        assert _train(digits_dataset, own_models / folder, *flags, model="fingerprint_model:model_fn") == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("train  "))
        return row.split()[4]

    resumed = [loss("resumed", steps) for steps in (1, 2, 4)]
    assert len(set(resumed)) == 3
    # A run that goes through gives its losses at the same steps.
    assert [loss(f"through {steps}", steps) for steps in (2, 4)] == resumed[1:]
    assert loss("other seed", 4, "--seed=1") != resumed[2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image-size=12"], "'dense/kernel' as float32(256, 128), model_fn makes it as float32(576, 128)"),
        (["--image-size=12", "--mode=eval"], "had inputs of another size. Use another model_dir"),
        (["--image-size=12", "--mode=predict"], "'dense/kernel'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_told_in_a_line_and_nothing_is_written(
    flags: list[str], message: str, model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in model_dir.iterdir() if path.is_file()}
    assert _train(digits_dataset, model_dir, "--train-steps=50", *flags) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert "configuration" not in out
    assert err.splitlines()[-1].startswith("tpudata: error: ")
    assert {path.name: path.read_bytes() for path in model_dir.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("kind", ["index", "data-00000-of-00001"])
def test_a_damaged_checkpoint_is_told_in_a_line(
    kind: str, model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "model"))
    path = folder / f"model.ckpt-40.{kind}"
    path.write_bytes(path.read_bytes()[:100])
    assert _train(digits_dataset, folder, "--mode=eval") == 1
    assert "model.ckpt-40 cannot be read" in capsys.readouterr().err


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
        ("asks_for_more", "unknown arguments ['images']"),
    ],
)
def test_a_model_that_cannot_be_used_is_told_in_a_line(
    name: str, message: str, digits_dataset: Path, own_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_models / "bad_models.py").write_text(BAD_MODELS)
    assert _train(digits_dataset, own_models / "m", model=f"bad_models:{name}") == 1
    assert message in capsys.readouterr().err
    assert not (own_models / "m").exists()


def test_an_error_in_a_model_keeps_its_traceback(digits_dataset: Path, own_models: Path) -> None:
    (own_models / "bad_models.py").write_text(BAD_MODELS)
    with pytest.raises(KeyError, match="no such key"):
        _train(digits_dataset, own_models / "m", model="bad_models:faulty")


@pytest.mark.parametrize(
    ("flag", "code", "message"),
    [
        ("--model=mnist_cn", 2, "Did you mean 'mnist_cnn'"),
        ("--model=no_such_package:model_fn", 2, "no module 'no_such_package'"),
        ("--tpu-name=t", 2, "--tpu-name requires --use-tpu"),
        ("--model-dir=s3://bucket/model", 2, "TensorFlow has no file system for s3://"),
        ("--data=gs://bucket/data", 1, "gs://bucket/data"),
        ("--data=nowhere", 1, "nowhere"),
        ("--eval-split=test", 1, "no split 'test'"),
    ],
)
def test_mistakes_that_are_found_before_tensorflow_is_loaded(
    flag: str,
    code: int,
    message: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    def load(feature: str) -> None:
        raise AssertionError("TensorFlow is loaded")

    monkeypatch.setattr("tpudata.train.job.require_tensorflow", load)
    words = ["--model=mnist_cnn", f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}"]
    assert main(["train", *words, flag]) == code
    assert message in capsys.readouterr().err


def test_an_image_that_does_not_decode_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_undecodable(str(tmp_path / "data"))
    assert _train(Path(data), tmp_path / "model", "--train-steps=20", "--batch-size=8", "--mode=train") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tpudata: error:")]
    assert line.startswith("tpudata: error: an encoded image does not decode: Invalid PNG data, size ")


def test_a_damaged_record_is_one_line(digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(digits_dataset, data)
    shard = sorted(data.glob("train-*.tfrecord"))[0]
    damaged = bytearray(shard.read_bytes())
    damaged[60] ^= 1
    shard.write_bytes(damaged)
    assert _train(data, tmp_path / "model", "--train-steps=20") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tpudata: error:")]
    assert line.startswith(f"tpudata: error: {shard} at byte 0: the record is damaged or cut.")
