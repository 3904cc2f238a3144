"""Steps of models, compiled by the TPU's own compiler."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import bert_program
from tests.estimator.programs import train_input_fn
from tests.estimator.tpu_check.rehearsals import make_estimator, model_of
from tests.helpers.libtpu import needs_libtpu
from tests.models.programs import rows
from tpudata.devices.tpu_compiler.compiler import CompilerError, Fault
from tpudata.errors import UsageError
from tpudata.estimator import (
    CrossShardOptimizer,
    ModeKeys,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
    check_tpu_compatibility,
)
from tpudata.estimator.tpu_check import rehearsal, tpu_step
from tpudata.models import get_model

v1 = tf.compat.v1
COUNT = 64
RNG = np.random.default_rng(0)
Data = Callable[[], tuple[Mapping[str, Any], Any]]


def classes() -> Any:
    return np.arange(COUNT, dtype=np.int32) % 3


def images(size: int) -> Data:
    return lambda: ({"image": np.zeros([COUNT, size, size, 3], np.uint8)}, classes())


def tokens() -> tuple[Mapping[str, Any], Any]:
    ids = RNG.integers(0, 64, (COUNT, 32)).astype(np.int32)
    return {"input_ids": ids}, ids


MODELS: dict[str, tuple[Any, Data, dict[str, Any]]] = {
    "bert": (bert_program.model_fn, lambda: bert_program.make_rows(COUNT), {}),
    "char_lstm": (get_model("char_lstm"), tokens, {"vocab_size": 64}),
    "iris_mlp": (get_model("iris_mlp"), lambda: ({"x": np.zeros([COUNT, 4], np.float32)}, classes()), {}),
    "mnist_cnn": (get_model("mnist_cnn"), images(28), {"num_classes": 3}),
    "resnet": (get_model("resnet"), images(64), {"num_classes": 3, "depth": 50}),
    "tiny_lm": (get_model("tiny_lm"), tokens, {"vocab_size": 64}),
}
# Those that take at most 11 s of CPU. -m matrix runs the others: all 15 take 16 minutes on two shared cores.
QUICK = {("bert", "v5e-8"), ("char_lstm", "v4-8"), ("iris_mlp", "v6e-8")}


@pytest.mark.cases(1)
@needs_libtpu
@pytest.mark.parametrize(
    ("model", "tpu"),
    [
        pytest.param(model, tpu, marks=() if (model, tpu) in QUICK else pytest.mark.matrix)
        for model in MODELS
        for tpu in ("v4-8", "v5e-8", "v6e-8")
    ],
)
def test_bundled_models_compile_for_each_tpu(model: str, tpu: str, tmp_path: Path) -> None:
    model_fn, data, params = MODELS[model]
    config = RunConfig(TPUConfig(iterations_per_loop=10))
    estimator = TPUEstimator(model_fn, str(tmp_path), config, params, train_batch_size=COUNT, rehearse=True)
    found = check_tpu_compatibility(estimator, {ModeKeys.TRAIN: rows(*data(), forever=True)}, tpu=tpu)
    assert list(found) == []
    (cost,) = found.costs
    assert (cost.mode, cost.batch_size, cost.loop_steps) == (ModeKeys.TRAIN, COUNT, 10)
    assert 0 < cost.compiled.arguments < cost.compiled.hbm < cost.tpu.chip.device_hbm
    assert cost.compiled.flops > 0
    assert 0 < cost.least_seconds < 1


@needs_libtpu
def test_counts_the_operations_and_the_memory_of_one_device(tmp_path: Path) -> None:
    """Two layers of 2,048 x 2,048 with a momentum, and the batches of a loop."""
    size, batch = 2048, 1024

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        first, second = (v1.get_variable(name, [size, size]) for name in ("first", "second"))
        loss = tf.reduce_mean(tf.square(tf.tanh(features["x"] @ first) @ second))
        optimizer = CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    x = np.zeros([batch, size], np.float32)
    config = RunConfig(TPUConfig(iterations_per_loop=4))
    estimator = TPUEstimator(model_fn, str(tmp_path), config, train_batch_size=batch, rehearse=True)
    data = rows({"x": x}, np.zeros(batch, np.float32), forever=True)
    (cost,) = check_tpu_compatibility(estimator, {ModeKeys.TRAIN: data}, tpu="v5e-8").costs
    own = batch // 8
    # Forward 2 products, backward 3, as no gradient of x is needed.
    assert cost.compiled.flops == pytest.approx(5 * 2 * own * size * size, rel=0.1)
    # Two weights with a momentum each, and 4 batches.
    assert cost.compiled.arguments == pytest.approx(4 * 4 * size * size + 4 * 4 * own * size, rel=0.01)
    assert cost.batch_bytes == 4 * own * size + 4 * own
    assert cost.loop_steps == 4


def rejected_by_the_compiler(x: Any) -> Any:
    square = tf.cast(tf.transpose(x) @ x, tf.float64) + tf.eye(3, dtype=tf.float64)
    return x @ tf.cast(tf.linalg.cholesky(square), tf.float32)


@pytest.mark.matrix
@needs_libtpu
def test_finds_the_operation_that_the_compiler_rejects(tmp_path: Path) -> None:
    line = rejected_by_the_compiler.__code__.co_firstlineno + 2
    estimator = make_estimator(tmp_path, model_of(rejected_by_the_compiler))
    found = check_tpu_compatibility(estimator, {ModeKeys.TRAIN: train_input_fn}, tpu="v5e-8")
    (finding,) = (item for item in found if item.is_rejected)
    assert finding.where == f"{__file__}:{line}"
    assert finding.what.startswith("the compiler of v5e-8 rejects Cholesky 'Cholesky': INVALID_ARGUMENT")
    assert finding.fix
    assert found.costs == ()


def test_reports_names_of_a_compiler_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*arguments: object) -> None:
        raise CompilerError(Fault.REJECTED, "INTERNAL: %fusion.1 is not supported")

    monkeypatch.setattr(rehearsal, "explain_missing_compiler", lambda: None)
    monkeypatch.setattr(tpu_step, "compile_for", reject)
    findings = check_tpu_compatibility(make_estimator(tmp_path), {ModeKeys.TRAIN: train_input_fn}, tpu="v5e-8")
    assert findings
    assert all(finding.what.endswith("INTERNAL: %fusion.1 is not supported") for finding in findings)


@needs_libtpu
def test_names_the_largest_tensors_of_a_step_that_does_not_fit(tmp_path: Path) -> None:
    def large(x: Any) -> Any:
        row = tf.range(60_000, dtype=tf.float32) * x[0, 0]
        y = tf.sin(row[:, None] * row)
        for _ in range(3):
            y = tf.tanh(y @ y)
        return x * tf.reduce_sum(y)

    estimator = make_estimator(tmp_path, model_of(large))
    (finding,) = estimator.rehearse({ModeKeys.TRAIN: train_input_fn}, tpu="v5e-8")
    assert finding.is_rejected
    assert finding.where == "memory of a device"
    assert "a device of v5e-8 has 15.75 GiB for programs" in finding.what
    assert f"(60000, 60000) float32 of 13.41 GiB at {__file__}:" in finding.what


def test_says_that_a_step_is_not_compiled_without_libtpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "explain_missing_compiler", lambda: "libtpu not installed. Run: pip install it")
    estimator = make_estimator(tmp_path, model_of(lambda x: tf.strings.to_number(tf.as_string(x))))
    found = check_tpu_compatibility(estimator, {ModeKeys.TRAIN: train_input_fn}, tpu="v5e-8")
    rejected, unchecked = found
    assert "AsString" in rejected.what
    assert not unchecked.is_rejected
    assert unchecked.where == "tpu='v5e-8'"
    assert unchecked.what == "the step is not compiled for it: libtpu not installed. Run: pip install it"


def test_rejects_unknown_slices_efforts_and_other_device_counts(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, tpu_config=TPUConfig(num_shards=4))
    modes = {ModeKeys.TRAIN: train_input_fn}
    with pytest.raises(UsageError, match=r"num_shards=4\) is for another TPU \(got 4, expected 8 devices\)"):
        check_tpu_compatibility(estimator, modes, tpu="v5e-8")
    with pytest.raises(UsageError, match="there is no TPU 'v5e-7'"):
        check_tpu_compatibility(estimator, modes, tpu="v5e-7")
    with pytest.raises(UsageError, match="tpu_effort must be one of quick, full, got 'much'"):
        check_tpu_compatibility(estimator, modes, tpu="v5e-8", tpu_effort="much")
