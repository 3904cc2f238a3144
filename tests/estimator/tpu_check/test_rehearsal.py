"""Findings of a rehearsal: a small program for each cause, and programs without findings."""

import importlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator.programs import X, Y, finite_input_fn, make_model_fn, train_input_fn
from tests.estimator.tpu_check.rehearsals import make_estimator, model_of, rehearse_body, steps_input_fn
from tpudata.estimator import (
    CrossShardOptimizer,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    InputPipelineConfig,
    ModeKeys,
    RehearsalError,
    TPUConfig,
    TPUEstimatorSpec,
    TrainSpec,
    check_tpu_compatibility,
    train_and_evaluate,
)

v1 = tf.compat.v1
THIS_FILE = Path(__file__).name


ALL = {ModeKeys.TRAIN: train_input_fn, ModeKeys.EVAL: steps_input_fn, ModeKeys.PREDICT: finite_input_fn(10)}


@pytest.mark.parametrize(
    "optimizer",
    [
        "AdamOptimizer",
        pytest.param("FtrlOptimizer", marks=pytest.mark.matrix),
        pytest.param("MomentumOptimizer", marks=pytest.mark.matrix),
        pytest.param("RMSPropOptimizer", marks=pytest.mark.matrix),
    ],
)
def test_v1_optimizers_have_no_findings(optimizer: str, tmp_path: Path) -> None:
    kwargs = {"momentum": 0.9} if optimizer == "MomentumOptimizer" else {}
    model_fn = make_model_fn(lambda: getattr(v1.train, optimizer)(0.1, **kwargs))
    assert make_estimator(tmp_path, model_fn).rehearse(ALL) == ()
    assert not list(tmp_path.iterdir())


# The CNN below tests layers of tf_keras.
@pytest.mark.parametrize("name", ["keras", pytest.param("tf_keras", marks=pytest.mark.matrix)])
def test_keras_layers_have_no_findings(name: str, tmp_path: Path) -> None:
    library = importlib.import_module(name)

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        training = mode == ModeKeys.TRAIN
        layers = library.layers
        x = layers.BatchNormalization()(layers.Dense(8, activation="relu")(features["x"]), training=training)
        outputs = layers.Dense(1)(layers.Dropout(0.5)(x, training=training))[:, 0]
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions={"outputs": outputs})
        loss = tf.reduce_mean((outputs - labels) ** 2)
        if mode == ModeKeys.EVAL:
            metric = library.metrics.MeanAbsoluteError()
            metric.update_state(labels, outputs)
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"mae": metric})
        optimizer = CrossShardOptimizer(library.optimizers.Adam(0.01))
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    assert make_estimator(tmp_path, model_fn).rehearse(ALL) == ()


def test_a_v1_cnn_has_no_findings(tmp_path: Path) -> None:
    """The model has an embedding with sparse gradients, a decayed learning rate, v1 summaries and a loop of fixed length."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        table = v1.get_variable("table", [5, 16])
        rows = tf.nn.embedding_lookup(table, features["word"])
        training = mode == ModeKeys.TRAIN
        image = tf.nn.conv2d(tf.reshape(rows, [-1, 4, 4, 1]), v1.get_variable("filters", [3, 3, 1, 4]), 1, "SAME")
        image = tf.nn.max_pool2d(tf_keras.layers.BatchNormalization()(image, training=training), 2, 2, "SAME")
        x = tf.nn.dropout(tf.reshape(image, [-1, 16]), 0.5 if training else 0.0)
        _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 0.9), [0, x], maximum_iterations=3)
        logits = x @ v1.get_variable("weights", [16, 3])
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"class": tf.argmax(logits, 1)})
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == ModeKeys.EVAL:

            def metrics(labels: Any, logits: Any) -> Any:
                return {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))}

            return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metrics, [labels, logits]))
        v1.summary.scalar("loss", loss)
        step = v1.train.get_global_step()
        rate = v1.train.exponential_decay(0.1, step, 10, 0.9)
        optimizer = CrossShardOptimizer(v1.train.AdagradOptimizer(rate))
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def input_fn(params: dict[str, Any]) -> Any:
        words = np.arange(40, dtype=np.int32) % 5
        data = tf.data.Dataset.from_tensor_slices(({"word": words}, words % 3))
        return data.repeat().batch(params["batch_size"], drop_remainder=True).take(3)

    modes = dict.fromkeys(ALL, input_fn)
    assert make_estimator(tmp_path, model_fn).rehearse(modes) == ()


def cumsum_of_short_ints(x: Any) -> Any:
    return x * tf.cast(tf.cumsum(tf.cast(x, tf.int16)), tf.float32)


def unfitting_loop(x: Any) -> Any:
    _, y = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, y: (i + 1, tf.concat([y, y], 0)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 3])],
    )
    return x * tf.reduce_sum(y)


def gradient_of_an_open_loop(x: Any) -> Any:
    scale = v1.get_variable("scale", [3])
    end = tf.cast(x[0, 0], tf.int32)
    return tf.while_loop(lambda i, _: i < end, lambda i, y: (i + 1, y * scale), [0, x])[1]


def python_in_a_branch(x: Any) -> Any:
    def branch() -> Any:
        return tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), x.shape)

    return tf.cond(x[0, 0] > 0, branch, lambda: x)


def printed(x: Any) -> Any:
    with tf.control_dependencies([tf.print("x", x)]):
        return tf.identity(x)


def recorded(x: Any) -> Any:
    tf.summary.scalar("mean", tf.reduce_mean(x))
    return x


def asked_of_a_table(x: Any) -> Any:
    start = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([0.0, 1.0]))
    return x * tf.lookup.StaticHashTable(start, 0.5).lookup(tf.cast(x, tf.int64))


CAUSES = [
    (lambda x: tf.reshape(tf.numpy_function(np.sin, [x], tf.float32), x.shape), "PyFunc: runs Python", "dataset's map"),
    (
        lambda x: tf.reshape(tf.py_function(tf.sin, [x], tf.float32), x.shape),
        "EagerPyFunc: runs Python",
        "dataset's map",
    ),
    (python_in_a_branch, "PyFunc: runs Python", "dataset's map"),
    (lambda x: tf.strings.to_number(tf.as_string(x)), "AsString, StringToNumber: works on strings", "dataset's map"),
    (printed, "StringFormat, PrintV2: prints", "host_call"),
    (asked_of_a_table, "HashTableV2", "dataset's map"),
    (cumsum_of_short_ints, "Cumsum: has no XLA kernel for int16, int32", "tf.cast"),
    (lambda x: x * tf.cast(tf.cast(x, tf.complex128) ** 2, tf.float32), "which a TPU does not have", "complex64"),
    (lambda x: x * tf.reduce_sum(tf.boolean_mask(x, x > 0)), "the result of Where depends on the data", "mask"),
    (lambda x: x * tf.reduce_sum(tf.unique(x[:, 0])[0]), "the result of Unique depends on the data", "mask"),
    (
        lambda x: x + tf.reduce_sum(x[: tf.cast(x[0, 0], tf.int32)]),
        "the result of StridedSlice depends",
        "static shapes",
    ),
    (
        lambda x: x + tf.reduce_sum(tf.zeros([tf.cast(x[0, 0], tf.int32)])),
        "the result of Fill depends on the data",
        "static shapes",
    ),
    (unfitting_loop, "the result of StatelessWhile depends on the data", "keep the shape"),
    (gradient_of_an_open_loop, "XLA compilation requires a fixed tensor list size", "maximum_iterations"),
    (
        lambda x: x * tf.reshape(v1.get_variable("v", initializer=lambda: x), x.shape),
        "'v' depends on the batch",
        "init",
    ),
]


@pytest.mark.parametrize(("body", "what", "fix"), CAUSES, ids=[cause[1].partition(":")[0] for cause in CAUSES])
def test_finds_one_cause_with_its_place_and_fix(body: Any, what: str, fix: str, tmp_path: Path) -> None:
    findings = rehearse_body(tmp_path, body)
    assert len(findings) == 1, [str(item) for item in findings]
    finding = findings[0]
    assert finding.is_rejected
    assert finding.mode == ModeKeys.TRAIN
    # The program is this file, and the model_fn of `model_of`.
    assert Path(finding.where.partition(":")[0]).name in (THIS_FILE, "rehearsals.py")
    assert what in finding.what
    assert fix in finding.fix


def test_a_loop_in_a_branch_needs_another_way_to_its_gradient(tmp_path: Path) -> None:
    def loop_in_a_branch(x: Any) -> Any:
        scale = v1.get_variable("scale", [3])
        loop = (lambda i, _: i < 3, lambda i, y: (i + 1, y * scale), [0, x])
        return tf.cond(x[0, 0] > 0, lambda: tf.while_loop(*loop, maximum_iterations=3)[1], lambda: x)

    findings = rehearse_body(tmp_path, loop_in_a_branch)
    assert {finding.what for finding in findings} == {
        f"FakeParam: has no XLA kernel for {dtype}" for dtype in ("resource", "variant")
    }
    assert all("select one with tf.where" in finding.fix for finding in findings)


def test_names_an_operation_of_a_function_with_its_own_type(tmp_path: Path) -> None:
    signature = [tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([2], tf.int32)]

    @tf.function(input_signature=signature)  # type: ignore[untyped-decorator]
    def reshape(x: Any, shape: Any) -> Any:
        return tf.reduce_sum(tf.reshape(x, shape))

    def body(x: Any) -> Any:
        shape = tf.cast(tf.stack([x[0, 0] * 0 + 16, x[0, 0] * 0 + 3]), tf.int32)
        return x + tf.stop_gradient(reshape(x, shape))

    (finding,) = rehearse_body(tmp_path, body)
    assert THIS_FILE in finding.where
    assert finding.what.startswith("XLA, on Reshape 'Reshape': ")


def test_operations_that_no_step_runs_have_no_findings(tmp_path: Path) -> None:
    def unused(x: Any) -> Any:
        tf.print("x", x)
        v1.py_func(lambda: 0, [], tf.int64)
        return x

    assert rehearse_body(tmp_path, unused) == []
    # The host writes summaries, from values that a loop returns.
    assert rehearse_body(tmp_path, recorded) == []


def test_lists_all_findings_at_once(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        x = x * tf.reshape(tf.numpy_function(np.sin, [x], tf.float32), x.shape)
        x = x * tf.reduce_sum(tf.boolean_mask(x, x > 0))
        x = gradient_of_an_open_loop(x)
        return x + tf.strings.to_number(tf.as_string(x))

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X, "name": ["a"] * 40}, Y)).batch(params["batch_size"])

    estimator = make_estimator(tmp_path, model_of(body), size=20)
    modes = {ModeKeys.TRAIN: input_fn, ModeKeys.PREDICT: input_fn}
    findings = estimator.rehearse(modes)
    signs = ["batch size", "name", "features['x']", "labels", "PyFunc", "Where", "fixed tensor list", "strings"]
    training = [str(item) for item in findings if item.mode == ModeKeys.TRAIN]
    for sign in signs:
        assert any(sign in text for text in training), sign
    predicting = [str(item) for item in findings if item.mode == ModeKeys.PREDICT]
    for sign in ("batch size", "PyFunc", "Where", "AsString"):
        assert any(sign in text for text in predicting), sign
    assert not any("fixed tensor list" in text for text in predicting)  # no gradients
    with pytest.raises(RehearsalError) as caught:
        estimator.train(input_fn, steps=1)
    assert [item for item in findings if item.mode == ModeKeys.TRAIN] == list(caught.value.findings)
    assert str(caught.value).startswith("A TPU would reject 9 things:")
    for text in training:
        assert text in str(caught.value)


def test_reports_slow_dtypes_without_rejecting_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        numbers = np.arange(40)
        data = tf.data.Dataset.from_tensor_slices(({"x": X.astype(np.float64), "number": numbers}, Y))
        return data.repeat().batch(params["batch_size"], drop_remainder=True)

    estimator = make_estimator(tmp_path, model_of(lambda x: tf.cast(x * 2, tf.float32)))
    findings = estimator.rehearse({ModeKeys.TRAIN: input_fn})
    assert [item.where for item in findings] == ["features['number']", "features['x']"]
    assert [item.fix for item in findings] == [
        "tf.cast to int32 in the dataset's map",
        "tf.cast to float32 in the dataset's map",
    ]
    assert not any(item.is_rejected for item in findings)
    with caplog.at_level(logging.INFO):
        estimator.train(input_fn, steps=1)
    assert "features['x']: its dtype is float64" in caplog.text
    assert "Rehearsal of train: nothing that a TPU would reject." in caplog.text

    within = rehearse_body(tmp_path, lambda x: tf.cast(tf.cast(x, tf.float64) * 2, tf.float32))
    assert [(item.is_rejected, "float64" in item.what) for item in within] == [(False, True)]


@pytest.mark.parametrize("shards", [2, pytest.param(4, marks=pytest.mark.matrix), None])
def test_host_functions_get_the_rows_of_all_cores(shards: int | None, tmp_path: Path) -> None:
    """Metrics and host_call that count on the size of the whole batch."""
    shapes: list[list[int]] = []

    def metric_fn(outputs: Any) -> Any:
        shapes.append(outputs.shape.as_list())
        return {"mean": v1.metrics.mean(tf.reshape(outputs, [16]))}

    def host_fn(outputs: Any) -> Any:
        shapes.append(outputs.shape.as_list())
        return tf.reshape(outputs, [16])

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        spec = make_model_fn()(features, labels, mode, params)
        outputs = features["x"][:, 0]
        call = (metric_fn, [outputs]) if mode == ModeKeys.EVAL else None
        train_op = spec.train_op if mode == ModeKeys.TRAIN else None
        host_call = (host_fn, [outputs])
        return TPUEstimatorSpec(mode, loss=spec.loss, train_op=train_op, eval_metrics=call, host_call=host_call)

    estimator = make_estimator(tmp_path, model_fn, tpu_config=TPUConfig(num_shards=shards))
    assert estimator.rehearse({ModeKeys.TRAIN: train_input_fn, ModeKeys.EVAL: steps_input_fn}) == ()
    assert shapes == [[16]] * 3


@pytest.mark.parametrize("mode", InputPipelineConfig)
def test_input_modes_give_the_rows_of_a_tpu(mode: InputPipelineConfig, tmp_path: Path) -> None:
    rows: list[int] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        assert params["use_tpu"] is True
        assert params["context"].num_replicas == 8
        assert features["x"].shape[0] == params["batch_size"]
        rows.append(features["x"].shape[0])
        return make_model_fn()(features, labels, mode, params)

    estimator = make_estimator(tmp_path, model_fn, tpu_config=TPUConfig(per_host_input_for_training=mode))
    findings = estimator.rehearse({ModeKeys.TRAIN: train_input_fn})
    if mode is InputPipelineConfig.SLICED:
        assert ["SLICED" in item.what for item in findings] == [True]
    else:
        assert findings == ()
        assert rows == [16 if mode is InputPipelineConfig.BROADCAST else 2]


def test_finds_variables_made_outside_model_fn(tmp_path: Path) -> None:
    variable = tf.Variable(2.0)
    layer = tf_keras.layers.Dense(3)
    layer(np.zeros([1, 3], np.float32))
    for body in (lambda x: x * variable, layer):
        findings = rehearse_body(tmp_path, body)
        assert [(item.where, item.fix) for item in findings] == [
            ("model_fn", "make variables and layers inside model_fn, at every call")
        ]


def test_finds_unwrapped_optimizers_and_scalars_for_the_host(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", [3])
        outputs = tf.linalg.matvec(features["x"], w)
        loss = tf.reduce_mean((outputs - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        host_call = (lambda loss: [loss], [loss])
        eval_metrics = (lambda loss: {"m": v1.metrics.mean(loss)}, [loss])
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call, eval_metrics=eval_metrics)

    findings = make_estimator(tmp_path, model_fn).rehearse({**ALL, ModeKeys.PREDICT: finite_input_fn(8)})
    texts = [str(item) for item in findings if item.mode != ModeKeys.PREDICT]
    assert len(texts) == 4
    assert "not wrapped in CrossShardOptimizer" in texts[0]
    assert [text.split(":")[1].strip() for text in texts[1:]] == [
        "TPUEstimatorSpec(host_call=...)",
        "TPUEstimatorSpec(eval_metrics=...)",
        "TPUEstimatorSpec(host_call=...)",
    ]


def test_errors_of_model_fn_and_metric_fn_become_findings(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        if mode == ModeKeys.PREDICT:
            raise KeyError("no prediction here")
        spec = make_model_fn()(features, labels, mode, params)
        if mode == ModeKeys.EVAL:
            weights = tf.ones_like(labels)
            return TPUEstimatorSpec(mode, loss=spec.loss, eval_metrics=(broken, [labels, labels, weights]))
        return spec

    def broken(labels: Any, outputs: Any, weights: Any) -> Any:
        raise RuntimeError("not this one")

    findings = make_estimator(tmp_path, model_fn).rehearse(ALL)
    assert [(item.mode, item.where) for item in findings] == [
        (ModeKeys.EVAL, "TPUEstimatorSpec(eval_metrics=...)"),
        (ModeKeys.PREDICT, "model_fn"),
    ]
    assert "RuntimeError: not this one" in findings[0].what
    assert "no prediction here" in findings[1].what


@pytest.mark.parametrize(
    ("rows", "tpu", "text"),
    [
        (2_500_000_000, None, "and a TPU v3, v5e has less; a device of v4 has 32.00 GiB"),
        (1_500_000_000, None, None),
        (2_500_000_000, "v5e-8", "and one of v5e-8 has 16.00 GiB"),
        (2_500_000_000, "v6e-8", None),
    ],
)
def test_variables_must_fit_a_device(
    rows: int, tpu: str | None, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With momentum, each element takes two floats of 4 bytes; no such variable is made here."""
    monkeypatch.setattr("os.sysconf", lambda _: 1)
    model_fn = model_of(
        lambda x: x * v1.get_variable("large", [rows // 3, 3])[0],
        make_model_fn(lambda: v1.train.MomentumOptimizer(0.1, 0.9)),
    )
    *findings, machine = make_estimator(tmp_path, model_fn).rehearse({ModeKeys.TRAIN: train_input_fn}, tpu=tpu)
    assert not machine.is_rejected
    assert "it is not compiled: its variables take " in machine.what
    assert [item.where for item in findings] == ([] if text is None else ["memory of a device"])
    for item in findings:
        assert item.is_rejected
        assert f"{rows * 8 / 2**30:.2f} GiB"[:3] in item.what
        assert text is not None
        assert text in item.what


def test_rehearsing_calls_return_as_on_empty_data(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    assert estimator.train(train_input_fn, max_steps=100_000) is estimator
    assert estimator.last_loss is None
    result = estimator.evaluate(steps_input_fn)
    assert result.keys() == {"mae", "loss", "global_step"}
    assert np.isnan(result["mae"])
    assert np.isnan(result["loss"])
    assert list(estimator.predict(finite_input_fn(10))) == []
    specs = TrainSpec(train_input_fn, 100_000), EvalSpec(steps_input_fn)
    metrics, exports = train_and_evaluate(estimator, *specs)
    assert metrics is not None
    assert metrics.keys() == result.keys()
    assert exports == []
    assert not list(tmp_path.iterdir())
    with pytest.raises(RehearsalError, match="neither steps nor max_steps"):
        estimator.train(train_input_fn)
    with pytest.raises(ValueError, match="not both"):
        estimator.train(train_input_fn, steps=1, max_steps=1)
    with pytest.raises(ValueError, match="must be one of"):
        estimator.rehearse({"training": train_input_fn})


def test_train_and_evaluate_lists_findings_of_both_modes(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, model_of(lambda x: tf.strings.to_number(tf.as_string(x))))
    with pytest.raises(RehearsalError) as caught:
        train_and_evaluate(estimator, TrainSpec(train_input_fn, 10), EvalSpec(finite_input_fn(10)))
    assert [item.mode for item in caught.value.findings] == [ModeKeys.TRAIN, *[ModeKeys.EVAL] * 3]


def test_ignores_evaluation_that_is_not_on_the_tpu(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, eval_on_tpu=False)
    assert estimator.rehearse({ModeKeys.EVAL: finite_input_fn(10)}) == ()
    assert make_estimator(tmp_path).rehearse({ModeKeys.EVAL: finite_input_fn(10)}) != ()


def test_an_estimator_can_rehearse_and_train(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, rehearse=False, use_tpu=False)
    assert estimator.rehearse(ALL) == ()
    estimator.train(train_input_fn, steps=2)
    assert estimator.last_loss is not None


def test_checks_a_plain_estimator(tmp_path: Path) -> None:
    plain = Estimator(model_of(lambda x: x), str(tmp_path))
    findings = check_tpu_compatibility(plain, {ModeKeys.TRAIN: train_input_fn})
    assert [item.where for item in findings] == ["batch size"]
    assert "train_batch_size=None" in findings[0].what
    estimator = make_estimator(tmp_path)
    modes = {ModeKeys.EVAL: finite_input_fn(10)}
    assert check_tpu_compatibility(estimator, modes) == list(estimator.rehearse(modes)) != []
    with pytest.raises(
        TypeError, match=r"^check_tpu_compatibility: estimator must be a TPUEstimator or an Estimator, got str"
    ):
        check_tpu_compatibility("estimator", ALL)  # type: ignore[arg-type]
