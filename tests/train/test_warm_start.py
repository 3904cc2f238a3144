"""Training that starts from another run's checkpoint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.train.jobs import newest_step, train_job

# A layer, a normalization with an average that is not trained, and a last layer.
NORMALIZING_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    v1 = tf.compat.v1
    pixels = tf.reshape(tf.cast(features["image"], tf.float32) / 255, [-1, 64])
    units = params.get("units", 4)
    with v1.variable_scope("first"):
        net = tf.matmul(pixels, v1.get_variable("kernel", [64, units]))
        average = v1.get_variable("average", [units], initializer=v1.zeros_initializer(), trainable=False)
    with v1.variable_scope("last"):
        logits = tf.matmul(net - average, v1.get_variable("kernel", [units, params.get("outputs", 10)]))
    if mode == "infer":
        if params.get("breaks"):
            raise ValueError("no predictions\\nhere")
        return TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    with tf.control_dependencies([average.assign(0.9 * average + 0.1 * tf.reduce_mean(net, 0))]):
        optimizer = v1.train.AdamOptimizer(params.get("learning_rate", 0.1))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""
MODEL = "normalizing_model:model_fn"
# Two layers whose variables have no scopes, or share one.
FLAT_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    v1 = tf.compat.v1
    pixels = tf.reshape(tf.cast(features["image"], tf.float32) / 255, [-1, 64])
    units, outputs = params.get("units", 4), params.get("outputs", 10)
    def dense(inputs, layer, sizes):
        makers = [lambda: v1.get_variable(f"w{layer}", sizes), lambda: v1.get_variable(f"b{layer}", sizes[1:])]
        if layer == 2 and not params.get("last_bias", True):
            return tf.matmul(inputs, makers[0]())
        if params.get("bias_first"):
            bias, kernel = [make() for make in reversed(makers)]
        else:
            kernel, bias = [make() for make in makers]
        return tf.matmul(inputs, kernel) + bias

    with v1.variable_scope(params.get("scope") or v1.get_variable_scope()):
        logits = dense(dense(pixels, 1, [64, units]), 2, [units, outputs])
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
"""


@pytest.fixture(autouse=True)
def _own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "normalizing_model.py").write_text(NORMALIZING_MODEL)
    (tmp_path / "flat_model.py").write_text(FLAT_MODEL)


def _values(folder: Path, step: int) -> dict[str, np.ndarray]:
    path = str(folder / f"model.ckpt-{step}")
    return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def test_loads_the_model_but_not_the_optimizer(
    digits_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ["--mode=train", "--train-steps=5"]
    assert train_job(digits_dataset, tmp_path / "first", *first, model=MODEL) == 0
    source = _values(tmp_path / "first", 5)
    assert np.abs(source["first/average"]).min() > 0
    export = ["--mode=export", f"--output={tmp_path / 'export'}"]
    assert train_job(digits_dataset, tmp_path / "first", *export, model=MODEL) == 0
    (exported,) = (tmp_path / "export").iterdir()
    rest = {"first/kernel", "first/average"}
    with caplog.at_level(logging.INFO, logger="tpudata"):
        for name, flags, path in (
            ("same", [], tmp_path / "first"),
            ("other", ["--param=outputs=12"], exported),
        ):
            words = ["--mode=train", "--train-steps=1", f"--warm-start={path}", *flags]
            assert train_job(digits_dataset, tmp_path / name, *words, model=MODEL) == 0
            values = _values(tmp_path / name, 0)
            assert values["global_step"] == 0
            kept = rest if name == "other" else {*rest, "last/kernel"}
            for variable in kept:
                np.testing.assert_array_equal(values[variable], source[variable], err_msg=variable)
            assert values["last/kernel"].shape == (4, 12 if name == "other" else 10)
            slots = [value for variable, value in values.items() if "Adam" in variable]
            assert len(slots) == 4
            assert all((value == 0).all() for value in slots)
            assert values["beta1_power"] == pytest.approx(0.9)
    path = tmp_path / "first" / "model.ckpt-5"
    assert f"--warm-start: 3 of the model's 3 variables from {path}." in caplog.text
    omitted = "the last layer starts anew, as its size differs: last/kernel (got (4, 10), expected (4, 12))."
    path = exported / "variables" / "variables"
    assert f"--warm-start: 2 of the model's 3 variables from {path}; {omitted}" in caplog.text
    # The same command continues.
    words = ["--mode=train", "--train-steps=2", f"--warm-start={tmp_path / 'first'}"]
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert train_job(digits_dataset, tmp_path / "same", *words, model=MODEL) == 0
    assert newest_step(tmp_path / "same") == 2
    assert "--warm-start is not needed: training continues from" in caplog.text
    _check_mistakes(digits_dataset, tmp_path, capsys)


def _check_mistakes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tmp_path / "first", tmp_path / "damaged")
    (tmp_path / "damaged" / "model.ckpt-5.index").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for path, model, flags, code, message in (
        (
            "first",
            MODEL,
            ["--param=units=5"],
            2,
            "the variable 'first/kernel' does not fit normalizing_model:model_fn (got fl",
        ),
        ("first", "mnist_cnn", [], 2, "it lacks the variable 'conv2d/kernel' of mnist_cnn."),
        (
            "first",
            MODEL,
            ["--param=breaks=true"],
            2,
            "cannot be built for prediction, which shows its variables (got ValueE",
        ),
        ("damaged", MODEL, [], 1, "model.ckpt-5 cannot be read"),
        ("empty", MODEL, [], 2, "there is no checkpoint. Pass one, or the folder of a model."),
        ("first", MODEL, ["--mode=eval"], 2, "--warm-start requires --mode train or train_and_eval (got eval)"),
    ):
        capsys.readouterr()
        words = ["--mode=train", "--train-steps=1", f"--warm-start={tmp_path / path}", *flags]
        assert train_job(data, tmp_path / "m", *words, model=model) == code
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert message in line
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(("scope", "bias_first"), [("", False), ("net", False), ("net", True)])
def test_only_the_last_layer_may_differ_if_layers_have_no_scopes(
    digits_dataset: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    scope: str,
    bias_first: bool,
) -> None:
    prefix = f"{scope}/" if scope else ""

    def train(folder: str, *flags: str) -> int:
        words = [
            "--mode=train",
            "--train-steps=1",
            f"--param=scope='{scope}'",
            f"--param=bias_first={bias_first}",
            *flags,
        ]
        return train_job(digits_dataset, tmp_path / folder, *words, model="flat_model:model_fn")

    assert train("first") == 0
    warm_start = f"--warm-start={tmp_path / 'first'}"
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert train("classes", warm_start, "--param=outputs=12") == 0
    omitted = [f"{prefix}w2 (got (4, 10), expected (4, 12))", f"{prefix}b2 (got (10,), expected (12,))"]
    assert (
        f"2 of the model's 4 variables from {tmp_path / 'first' / 'model.ckpt-1'}; the last layer starts" in caplog.text
    )
    assert ", ".join(omitted[::-1] if bias_first else omitted) in caplog.text
    capsys.readouterr()
    assert train("units", warm_start, "--param=units=5") == 2
    first = f"{prefix}b1" if bias_first else f"{prefix}w1"
    assert f"the variable '{first}' does not fit flat_model:model_fn" in capsys.readouterr().err


def test_the_bias_of_an_earlier_layer_is_not_of_the_last_one(
    digits_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(folder: str, *flags: str) -> int:
        words = ["--mode=train", "--train-steps=1", "--param=last_bias=false", *flags]
        return train_job(digits_dataset, tmp_path / folder, *words, model="flat_model:model_fn")

    assert train("first") == 0
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert train("classes", f"--warm-start={tmp_path / 'first'}", "--param=outputs=12") == 0
    assert "2 of the model's 3 variables" in caplog.text
    assert "the last layer starts anew, as its size differs: w2 (got (4, 10), expected (4, 12))" in caplog.text
