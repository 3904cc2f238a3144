import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import W0, finite_input_fn, make_model_fn, train_input_fn, v1, variables
from tpudata.estimator import (
    CheckpointError,
    CrossShardOptimizer,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
    WarmStartSettings,
)


def momentum() -> Any:
    return v1.train.MomentumOptimizer(0.05, 0.9)


def test_rejects_vocabularies_to_remap() -> None:
    assert WarmStartSettings("a", ".*", None, {"a": "b"}).var_name_to_prev_var_name == {"a": "b"}
    assert WarmStartSettings("a", ".*", {}).var_name_to_vocab_info == {}
    with pytest.raises(ValueError, match=r"^WarmStartSettings\(var_name_to_vocab_info=...\) is not supported"):
        WarmStartSettings("a", ".*", {"embedding": object()})


def estimator(
    model_dir: Path, warm_start_from: Any = None, model_fn: Any = None, num_replicas: int | None = None
) -> TPUEstimator:
    return TPUEstimator(
        model_fn or make_model_fn(momentum),
        config=RunConfig(TPUConfig(num_replicas=num_replicas), model_dir=str(model_dir), tf_random_seed=1),
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
        warm_start_from=warm_start_from,
    )


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with the checkpoints of 5 steps with Momentum, and the last one's variables."""
    folder = tmp_path_factory.mktemp("before")
    first = estimator(folder)
    first.train(train_input_fn, steps=5)
    return folder, variables(first)


def first_values(folder: Path) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt-0"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def newest(folder: Path) -> str:
    return str(tf.train.latest_checkpoint(str(folder)))


@pytest.mark.parametrize("where", [str, Path, newest, lambda folder: WarmStartSettings(str(folder))])
def test_a_path_loads_all_trainable_variables(where: Any, before: Any, tmp_path: Path) -> None:
    folder, values = before
    estimator(tmp_path, where(folder)).train(train_input_fn, steps=1)
    found = first_values(tmp_path)
    for name in ("linear/w", "linear/b"):
        np.testing.assert_array_equal(found[name], values[name], err_msg=name)
        np.testing.assert_array_equal(found[f"{name}/Momentum"], 0)
    assert found["global_step"] == 0


@pytest.mark.parametrize(
    ("patterns", "warm"),
    [
        ("linear/w", {"linear/w"}),
        ("w", set()),  # tried at the start of the name
        (".*b", {"linear/b"}),
        ("linear/w[^/]", {"linear/w"}),  # the names end in ":0"
        (["linear/w[^/]", ".*/b"], {"linear/w", "linear/b", "linear/b/Momentum"}),
        ([".*Momentum"], {"linear/w/Momentum", "linear/b/Momentum"}),
        ([".*"], {"linear/w", "linear/b", "linear/w/Momentum", "linear/b/Momentum", "global_step"}),
        (None, set()),
    ],
)
def test_patterns_choose_the_variables(patterns: Any, warm: set[str], before: Any, tmp_path: Path) -> None:
    folder, values = before
    step = 5 if "global_step" in warm else 0
    estimator(tmp_path, WarmStartSettings(str(folder), patterns)).train(train_input_fn, steps=1)
    reader = tf.train.load_checkpoint(str(tmp_path / f"model.ckpt-{step}"))
    for name, value in values.items():
        start = W0 if name == "linear/w" else 0
        np.testing.assert_array_equal(reader.get_tensor(name), value if name in warm else start, err_msg=name)


def test_loads_the_variables_of_v1_warm_start(before: Any, tmp_path: Path) -> None:
    """TensorFlow's own `warm_start`, which the original called, picks the same variables."""
    folder, _ = before
    settings: dict[str, Any] = {
        "vars_to_warm_start": ["linear/w", ".*/b"],
        "var_name_to_prev_var_name": {"linear/b/Momentum": "linear/b"},
    }
    estimator(tmp_path, WarmStartSettings(str(folder), **settings)).train(train_input_fn, steps=1)
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        make_model_fn(momentum)({"x": tf.zeros([8, 3])}, tf.zeros([8]), "train", {})
        v1.train.warm_start(str(folder), **settings)
        session.run(v1.global_variables_initializer())
        expected = {variable.op.name: session.run(variable) for variable in v1.global_variables()}
        assert expected[step.op.name] == 0
    found = first_values(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_two_replicas_start_warm_as_one_does(before: Any, tmp_path: Path) -> None:
    folder, values = before
    two = estimator(tmp_path / "two", str(folder), num_replicas=2)
    two.train(train_input_fn, steps=3)
    np.testing.assert_array_equal(first_values(tmp_path / "two")["linear/w"], values["linear/w"])
    one = estimator(tmp_path / "one", str(folder)).train(train_input_fn, steps=3)
    for name, value in variables(one).items():
        np.testing.assert_allclose(two.get_variable_value(name), value, rtol=1e-5, atol=1e-6, err_msg=name)


def batch_norm_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    """A linear model of normalized inputs, whose averages evaluation uses."""
    x = features["x"] * 3.0 + 5.0
    zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
    with v1.variable_scope("norm"):
        mean = v1.get_variable("moving_mean", [3], initializer=zeros, trainable=False)
        variance = v1.get_variable("moving_variance", [3], initializer=ones, trainable=False)
    batch_mean, batch_variance = tf.nn.moments(x, [0])
    trains = mode == "train"
    used = (batch_mean, batch_variance) if trains else (mean, variance)
    w = v1.get_variable("w", [3, 1], initializer=zeros)
    outputs = tf.matmul((x - used[0]) * tf.math.rsqrt(used[1] + 1e-3), w)[:, 0]
    loss = tf.reduce_mean((outputs - labels) ** 2)
    update = [mean.assign(0.5 * mean + 0.5 * batch_mean), variance.assign(0.5 * variance + 0.5 * batch_variance)]
    step = v1.train.get_global_step()
    train_op = tf.group(CrossShardOptimizer(v1.train.AdamOptimizer(0.1)).minimize(loss, step), *update)
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def test_warns_of_skipped_averages_with_a_pattern_that_loads_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = estimator(tmp_path / "first", model_fn=batch_norm_model_fn).train(train_input_fn, steps=40)
    good = first.evaluate(finite_input_fn(40))["loss"]
    caplog.clear()
    cold = estimator(tmp_path / "cold", str(tmp_path / "first"), batch_norm_model_fn)
    assert cold.evaluate(finite_input_fn(40))["loss"] > 3 * good
    (message,) = [record.message for record in caplog.records if record.message.startswith("Warm start")]
    assert "'norm/moving_mean' and 1 more keep their initial values" in message
    (pattern,) = re.findall(r"vars_to_warm_start=\['(.*)'\]", message)
    caplog.clear()
    # The advised pattern loads the rest, but neither the step nor Adam's variables.
    warm = estimator(tmp_path / "warm", WarmStartSettings(str(tmp_path / "first"), [pattern]), batch_norm_model_fn)
    assert warm.evaluate(finite_input_fn(40))["loss"] == pytest.approx(good, rel=1e-6)
    warm.train(train_input_fn, steps=1)
    values = first_values(tmp_path / "warm")
    assert values["global_step"] == 0
    assert not np.any(values["w/Adam"])
    assert "initial values, as" not in caplog.text


def test_evaluate_and_predict_start_warm(before: Any, tmp_path: Path) -> None:
    folder, _ = before
    expected = estimator(folder).evaluate(finite_input_fn(24))
    warm = estimator(tmp_path, str(folder))
    result = warm.evaluate(finite_input_fn(24))
    assert (result["loss"], result["mae"]) == (expected["loss"], expected["mae"])
    assert result["global_step"] == 0
    for one, other in zip(warm.predict(finite_input_fn(8)), estimator(folder).predict(finite_input_fn(8)), strict=True):
        assert one["outputs"] == other["outputs"]


def test_ignores_the_warm_start_if_there_is_a_checkpoint(before: Any, tmp_path: Path) -> None:
    _, values = before
    estimator(tmp_path / "cold").train(train_input_fn, steps=1)
    cold = estimator(tmp_path / "cold", str(tmp_path / "is not looked at"))
    assert cold.evaluate(finite_input_fn(8))["global_step"] == 1
    cold.train(train_input_fn, max_steps=2)
    assert not np.array_equal(cold.get_variable_value("linear/w"), values["linear/w"])


def test_loads_variables_of_a_saved_model(before: Any, tmp_path: Path) -> None:
    _, values = before
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("linear/w", initializer=values["linear/w"])
        b = v1.get_variable("linear/b", initializer=values["linear/b"])
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "saved"), {"x": tf.constant(0)}, {"w": w + 0, "b": b + 0})
    estimator(tmp_path / "new", str(tmp_path / "saved")).train(train_input_fn, steps=1)
    np.testing.assert_array_equal(first_values(tmp_path / "new")["linear/w"], values["linear/w"])


def wider(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    with v1.variable_scope("linear"):
        w = v1.get_variable("w", [7])
        v1.get_variable("extra", [2])
    step = v1.train.get_global_step()
    loss = tf.reduce_mean(labels) * tf.reduce_sum(w)
    return TPUEstimatorSpec(mode, loss=loss, train_op=momentum().minimize(loss, global_step=step, var_list=[w]))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, CheckpointError, r"'linear/w' as float32\(3, 1\), model_fn makes 'linear/w' as float32\(7,\).*vars_to_"),
        ({"vars_to_warm_start": ".*extra"}, CheckpointError, r"lacks the variable 'linear/extra'.*prev_var_name"),
        ({"var_name_to_prev_var_name": {"linear/v": "w"}}, ValueError, r"\['linear/v'\].*'linear/extra', 'linear/w'"),
        (
            {"vars_to_warm_start": ["linear/w:"], "var_name_to_prev_var_name": {"linear/w": "linear/b"}},
            CheckpointError,
            r"'linear/b' as float32\(1,\), model_fn makes 'linear/w' as float32\(7,\)",
        ),
    ],
)
def test_rejects_variables_that_do_not_fit(
    settings: Any, error: Any, message: str, before: Any, tmp_path: Path
) -> None:
    folder, _ = before
    with pytest.raises(error, match=message):
        estimator(tmp_path, WarmStartSettings(str(folder), **settings), wider).train(train_input_fn, steps=1)
    assert list(tmp_path.iterdir()) == []


def test_loads_a_renamed_variable(before: Any, tmp_path: Path) -> None:
    folder, values = before
    settings = WarmStartSettings(str(folder), "linear/b", var_name_to_prev_var_name={"linear/b": "linear/b/Momentum"})
    estimator(tmp_path, settings).train(train_input_fn, steps=1)
    np.testing.assert_array_equal(first_values(tmp_path)["linear/b"], values["linear/b/Momentum"])


def test_rejects_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        estimator(tmp_path / "model", str(tmp_path / "nowhere")).train(train_input_fn, steps=1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ckpt_to_initialize_from": ""}, ValueError, "names no checkpoint"),
        ({"ckpt_to_initialize_from": None}, ValueError, "names no checkpoint"),
        ({"ckpt_to_initialize_from": 3}, TypeError, "must be a path, got int"),
        ({"ckpt_to_initialize_from": "a", "vars_to_warm_start": "("}, ValueError, "not a regular expression"),
        ({"ckpt_to_initialize_from": "a", "vars_to_warm_start": 3}, TypeError, "int"),
        ({"ckpt_to_initialize_from": "a", "vars_to_warm_start": [3]}, TypeError, "not variables"),
    ],
)
def test_settings_reject_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WarmStartSettings(**arguments)


def test_the_estimator_rejects_other_types() -> None:
    with pytest.raises(ValueError, match="warm_start_from"):
        TPUEstimator(make_model_fn(), use_tpu=False, warm_start_from=3)  # type: ignore[arg-type]
