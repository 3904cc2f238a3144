import inspect
import re
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn, v1
from tpudata.errors import StorageError
from tpudata.estimator import (
    CheckpointError,
    CrossShardOptimizer,
    EstimatorSpec,
    InputPipelineConfig,
    ModeKeys,
    ModelFnError,
    TPUEstimator,
    TPUEstimatorSpec,
    export,
)

DEFAULT = "serving_default"
raw = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3], tf.float32)})
parsing = export.build_parsing_serving_input_receiver_fn({"x": tf.io.FixedLenFeature([3], tf.float32)})


def make_exporting_model_fn(outputs: Any) -> Any:
    """A trained linear model whose export_outputs are `outputs(its result)`."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        spec = make_model_fn()(features, labels, mode, params)
        if mode == ModeKeys.PREDICT:
            assert spec.predictions is not None
            return TPUEstimatorSpec(mode, spec.predictions, export_outputs=outputs(spec.predictions["outputs"]))
        return spec

    return model_fn


def trained(folder: Path, model_fn: Any = None) -> TPUEstimator:
    estimator = make_estimator(folder, model_fn)
    estimator.train(train_input_fn, max_steps=5)
    return estimator  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained linear model; read it, and change nothing."""
    folder = tmp_path_factory.mktemp("model")
    trained(folder)
    return folder


def load(path: bytes) -> dict[str, Any]:
    return dict(tf.saved_model.load(path.decode()).signatures)


def predicted(estimator: TPUEstimator) -> Any:
    return np.array([row["outputs"] for row in estimator.predict(finite_input_fn(40))])


def examples() -> Any:
    def one(row: Any) -> bytes:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        return bytes(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())

    return tf.constant([one(row) for row in X])


def test_the_default_signature_returns_the_predictions(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir)
    before = int(time.time())
    path = estimator.export_saved_model(str(tmp_path / "export"), raw)
    assert isinstance(path, bytes)
    folder = Path(path.decode())
    assert folder.parent == tmp_path / "export"
    assert before <= int(folder.name) <= time.time()
    assert [item.name for item in folder.parent.iterdir()] == [folder.name]
    signatures = load(path)
    assert list(signatures) == [DEFAULT]
    outputs = signatures[DEFAULT](x=tf.constant(X))
    assert outputs.keys() == {"outputs", "inputs"}
    np.testing.assert_allclose(outputs["outputs"], predicted(estimator), rtol=1e-6)
    np.testing.assert_array_equal(outputs["inputs"], X)


def test_a_parsing_receiver_takes_serialized_examples(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir)
    outputs = load(estimator.export_savedmodel(str(tmp_path / "export"), parsing))[DEFAULT](examples=examples())
    np.testing.assert_allclose(outputs["outputs"], predicted(estimator), rtol=1e-6)


def test_keeps_the_variable_names_of_the_checkpoint(tmp_path: Path) -> None:
    estimator = trained(tmp_path / "model", make_model_fn(lambda: v1.train.MomentumOptimizer(0.1, 0.9)))
    path = estimator.export_saved_model(str(tmp_path / "export"), raw).decode()
    reader = tf.train.load_checkpoint(f"{path}/variables/variables")
    assert sorted(reader.get_variable_to_shape_map()) == ["global_step", "linear/b", "linear/w"]
    for name in ("linear/b", "linear/w", "global_step"):
        np.testing.assert_array_equal(reader.get_tensor(name), estimator.get_variable_value(name))


def test_a_v1_session_serves_the_export(model_dir: Path, tmp_path: Path) -> None:
    """It is loaded by tag and signature, as in TensorFlow Serving."""
    estimator = make_estimator(model_dir)
    path = estimator.export_saved_model(str(tmp_path / "export"), raw).decode()
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], path).signature_def[DEFAULT]
        assert signature.method_name == "tensorflow/serving/predict"
        assert [size.size for size in signature.inputs["x"].tensor_shape.dim] == [-1, 3]
        outputs = session.run(signature.outputs["outputs"].name, {signature.inputs["x"].name: X})
    np.testing.assert_allclose(outputs, predicted(estimator), rtol=1e-6)


def test_exports_an_older_checkpoint(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir)
    path = estimator.export_saved_model(str(tmp_path), raw, checkpoint_path=str(model_dir / "model.ckpt-0"))
    outputs = load(path)[DEFAULT](x=tf.constant(X))["outputs"]
    np.testing.assert_allclose(outputs, X @ np.array([0.1, 0.2, -0.3]), rtol=1e-5, atol=1e-6)


def test_a_single_output_is_also_the_default(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir, make_exporting_model_fn(lambda y: {"twice": export.PredictOutput(y * 2)}))
    signatures = load(estimator.export_saved_model(str(tmp_path / "export"), raw))
    assert sorted(signatures) == [DEFAULT, "twice"]
    for signature in signatures.values():
        np.testing.assert_allclose(signature(x=tf.constant(X))["output"], 2 * predicted(estimator), rtol=1e-6)


def several(y: Any) -> dict[str, Any]:
    scores = tf.stack([y, -y], 1)
    return {
        DEFAULT: export.PredictOutput({"y": y}),
        "classes": export.ClassificationOutput(scores, tf.where(scores > 0, "yes", "no")),
        "value": export.RegressionOutput(y),
    }


def test_classification_and_regression_signatures_take_examples(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = make_estimator(model_dir, make_exporting_model_fn(several))
    signatures = load(estimator.export_saved_model(str(tmp_path / "export"), parsing))
    assert sorted(signatures) == ["classes", DEFAULT, "value"]
    y = predicted(estimator)
    found = signatures["classes"](inputs=examples())
    np.testing.assert_allclose(found["scores"], np.stack([y, -y], 1), rtol=1e-6)
    np.testing.assert_array_equal(found["classes"][:, 0], np.where(y > 0, b"yes", b"no"))
    np.testing.assert_allclose(signatures["value"](inputs=examples())["outputs"], y, rtol=1e-6)
    assert "omits signatures" not in caplog.text
    assert sorted(load(estimator.export_saved_model(str(tmp_path / "export"), raw))) == [DEFAULT]
    assert "classes: a classification signature takes one string tensor" in caplog.text


def test_rejects_outputs_that_no_signature_serves(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir, make_exporting_model_fn(lambda y: {"value": export.RegressionOutput(y)}))
    with pytest.raises(ModelFnError, match=r"x \(float32\).*PredictOutput"):
        estimator.export_saved_model(str(tmp_path / "export"), raw)
    assert not (tmp_path / "export").exists()


def test_receivers_accept_a_single_tensor(model_dir: Path, tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        seen.append((features if not isinstance(features, dict) else sorted(features), params))
        if isinstance(features, dict):
            (features,) = features.values()
        return make_model_fn()(features, labels, mode, params)

    estimator = make_estimator(model_dir, model_fn)

    def bare() -> export.ServingInputReceiver:
        x = v1.placeholder(tf.float32, [None, 3])
        return export.ServingInputReceiver(x, x)

    def tensor() -> export.TensorServingInputReceiver:
        x = v1.placeholder(tf.float32, [None, 3])
        return export.TensorServingInputReceiver(x, x)

    expected = X @ estimator.get_variable_value("linear/w")[:, 0] + estimator.get_variable_value("linear/b")
    for receiver_fn in (bare, tensor):
        outputs = load(estimator.export_saved_model(str(tmp_path / "export"), receiver_fn))[DEFAULT](
            input=tf.constant(X)
        )
        np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-5, atol=1e-6)
    assert seen[-2] == (["feature"], {"use_tpu": False})
    assert isinstance(seen[-1][0], tf.Tensor)


def test_alternative_receivers_feed_parsed_features(model_dir: Path, tmp_path: Path) -> None:
    def receiver_fn() -> export.ServingInputReceiver:
        receiver = parsing()
        return export.ServingInputReceiver(receiver.features, receiver.receiver_tensors, {"parsed": receiver.features})

    estimator = make_estimator(model_dir)
    signatures = load(estimator.export_saved_model(str(tmp_path / "export"), receiver_fn))
    assert sorted(signatures) == ["parsed:serving_default", DEFAULT]
    outputs = signatures["parsed:serving_default"](x=tf.constant(X))["outputs"]
    np.testing.assert_allclose(outputs, predicted(estimator), rtol=1e-6)


def test_rejects_a_placeholder_that_is_not_a_receiver(model_dir: Path, tmp_path: Path) -> None:
    def receiver_fn() -> export.ServingInputReceiver:
        x, other = v1.placeholder(tf.float32, [None, 3], name="hidden"), v1.placeholder(tf.float32, [None])
        return export.ServingInputReceiver({"x": x}, {"other": other})

    with pytest.raises(ModelFnError, match="the placeholder 'hidden'"):
        make_estimator(model_dir).export_saved_model(str(tmp_path / "export"), receiver_fn)


def test_exports_the_file_of_a_lookup_table(model_dir: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zero\none\ntwo\n")

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        if mode != ModeKeys.PREDICT:
            return make_model_fn()(features, labels, mode, params)
        make_model_fn()(features, labels, mode, params)
        initializer = tf.lookup.TextFileInitializer(
            str(words), tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE
        )
        table = tf.lookup.StaticHashTable(initializer, "?")
        word = table.lookup(tf.cast(tf.argmax(features["x"], 1), tf.int64))
        return EstimatorSpec(mode, predictions={"word": word})

    estimator = make_estimator(model_dir, model_fn)
    path = estimator.export_saved_model(str(tmp_path / "export"), raw)
    words.unlink()
    found = load(path)[DEFAULT](x=tf.constant(X))["word"].numpy()
    assert [word.decode() for word in found] == [["zero", "one", "two"][i] for i in X.argmax(1)]


def test_exports_a_model_fn_with_a_train_op_in_every_mode(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        outputs = tf.linalg.matvec(features["x"], w)
        loss = tf.reduce_mean((outputs - (tf.zeros_like(outputs) if labels is None else labels)) ** 2)
        optimizer = CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, predictions={"outputs": outputs}, loss=loss, train_op=train_op)

    estimator = trained(tmp_path / "model", model_fn)
    outputs = load(estimator.export_saved_model(str(tmp_path / "export"), raw))[DEFAULT](x=tf.constant(X))["outputs"]
    np.testing.assert_allclose(outputs, X @ estimator.get_variable_value("w"), rtol=1e-5, atol=1e-6)


def test_export_saved_model_keeps_the_original_order_of_arguments() -> None:
    original = ["export_dir_base", "serving_input_receiver_fn", "assets_extra", "as_text", "checkpoint_path"]
    assert list(inspect.signature(TPUEstimator.export_saved_model).parameters) == ["self", *original]


@pytest.mark.parametrize("module", ["tf_keras", "keras"])
def test_exports_keras_layers(module: str, tmp_path: Path) -> None:
    layers = pytest.importorskip(module).layers

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        hidden = layers.BatchNormalization()(layers.Dense(4, activation="relu")(features["x"]), training=False)
        outputs = layers.Dense(1)(hidden)[:, 0]
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"outputs": outputs})
        loss = tf.reduce_mean((outputs - labels) ** 2)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        step = v1.train.get_global_step()
        variables = v1.trainable_variables()
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step, variables))

    estimator = trained(tmp_path / "model", model_fn)
    outputs = load(estimator.export_saved_model(str(tmp_path / "export"), raw))[DEFAULT](x=tf.constant(X))
    np.testing.assert_allclose(outputs["outputs"], predicted(estimator), rtol=1e-5, atol=1e-6)


def test_writes_text_and_extra_assets(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("about this model")
    estimator = make_estimator(model_dir)
    extra = {"deep/notes.txt": str(tmp_path / "notes")}
    path = Path(estimator.export_saved_model(str(tmp_path / "export"), raw, extra, as_text=True).decode())
    assert (path / "assets.extra" / "deep" / "notes.txt").read_text() == "about this model"
    assert "serving_default" in (path / "saved_model.pbtxt").read_text()
    assert not (path / "saved_model.pb").exists()
    load(str(path).encode())


def test_a_failed_export_leaves_no_files(model_dir: Path, tmp_path: Path) -> None:
    estimator = make_estimator(model_dir)
    with pytest.raises(StorageError, match=r"could not be written: .*missing"):
        estimator.export_saved_model(str(tmp_path / "export"), raw, {"a": str(tmp_path / "missing")})
    assert list((tmp_path / "export").iterdir()) == []


def test_exports_of_one_second_get_different_names(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = make_estimator(model_dir)
    monkeypatch.setattr(time, "time", lambda: 1700000000.5)
    names = [Path(estimator.export_saved_model(str(tmp_path / "export"), raw).decode()).name for _ in range(2)]
    assert names == ["1700000000", "1700000001"]


def test_an_export_does_not_depend_on_the_number_of_replicas(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "model", tpu_config={"num_replicas": 2})
    estimator.train(train_input_fn, max_steps=5)
    outputs = load(estimator.export_saved_model(str(tmp_path / "export"), raw))[DEFAULT](x=tf.constant(X))["outputs"]
    np.testing.assert_allclose(outputs, predicted(estimator), rtol=1e-6)
    np.testing.assert_array_equal(
        outputs,
        load(make_estimator(tmp_path / "model").export_saved_model(str(tmp_path), raw))[DEFAULT](x=tf.constant(X))[
            "outputs"
        ],
    )


# Exports do not depend on the input mode: one mode divides the batch, and one gives each replica all of it.
@pytest.mark.parametrize(
    "mode",
    [
        *(None, InputPipelineConfig.PER_HOST_V2),
        *(
            pytest.param(mode, marks=pytest.mark.matrix)
            for mode in (
                InputPipelineConfig.PER_SHARD_V1,
                InputPipelineConfig.PER_HOST_V1,
                InputPipelineConfig.BROADCAST,
            )
        ),
    ],
)
def test_evaluation_prediction_and_export_agree_in_each_input_mode(
    mode: InputPipelineConfig | None, tmp_path: Path
) -> None:
    """Training, evaluation, prediction and export, on one device and in each input mode on two replicas."""
    tpu_config = {} if mode is None else {"num_replicas": 2, "per_host_input_for_training": mode}
    estimator = make_estimator(tmp_path / "model", tpu_config=tpu_config).train(train_input_fn, max_steps=10)
    w, b = estimator.get_variable_value("linear/w"), estimator.get_variable_value("linear/b")
    outputs = (X @ w)[:, 0] + b
    result = estimator.evaluate(train_input_fn, steps=5)
    assert result["mae"] == pytest.approx(np.mean(np.abs(outputs - Y)), rel=1e-4)
    np.testing.assert_allclose(predicted(estimator), outputs, rtol=1e-4, atol=1e-5)
    served = load(estimator.export_saved_model(str(tmp_path / "export"), raw))[DEFAULT](x=tf.constant(X))["outputs"]
    np.testing.assert_allclose(served, outputs, rtol=1e-4, atol=1e-5)


def test_an_export_does_not_change_later_training(tmp_path: Path) -> None:
    estimator = trained(tmp_path / "a")
    estimator.export_saved_model(str(tmp_path / "export"), raw)
    estimator.train(train_input_fn, max_steps=9)
    other = trained(tmp_path / "b").train(train_input_fn, max_steps=9)
    np.testing.assert_array_equal(estimator.get_variable_value("linear/w"), other.get_variable_value("linear/w"))


def test_rejects_missing_checkpoints_and_wrong_receivers(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint.*Train first"):
        make_estimator(tmp_path / "empty").export_saved_model(str(tmp_path / "export"), raw)
    estimator = make_estimator(model_dir)
    with pytest.raises(CheckpointError, match="no checkpoint at nowhere"):
        estimator.export_saved_model(str(tmp_path / "export"), raw, checkpoint_path="nowhere")
    with pytest.raises(ValueError, match="serving_input_receiver_fn"):
        estimator.export_saved_model(str(tmp_path / "export"), None)
    with pytest.raises(TypeError, match="ServingInputReceiver"):
        estimator.export_saved_model(str(tmp_path / "export"), lambda: {})

    def other_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(mode, predictions={"y": features["x"] * v1.get_variable("another", [3])})

    with pytest.raises(CheckpointError, match="lacks the variable 'another'"):
        make_estimator(model_dir, other_model_fn).export_saved_model(str(tmp_path / "export"), raw)
    assert not (tmp_path / "export").exists()
    (tmp_path / "file").write_text("where the folder should be")
    with pytest.raises(StorageError, match=r"/file/[0-9]+ could not be written"):
        estimator.export_saved_model(str(tmp_path / "file"), raw)


def test_reports_failed_writes_in_one_line(tmp_path: Path) -> None:
    def wide_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        v1.get_variable("wide", [100, 100])
        return make_model_fn()(features, labels, mode, params)

    estimator = trained(tmp_path / "model", wide_model_fn)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError) as exported:
            estimator.export_saved_model(str(tmp_path / "export"), raw)
        with pytest.raises(StorageError) as saved:
            estimator.train(train_input_fn, steps=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for found in (exported, saved):
        text = str(found.value)
        assert re.search(r"could not be written: .*; File too large", text), text
        assert not any(mark in text for mark in ("\n", "{", "[Op")), text
    assert list((tmp_path / "export").iterdir()) == []
