import collections
import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata.estimator
from tests.estimator.programs import (
    X,
    Y,
    finite_input_fn,
    linear,
    losses,
    make_estimator,
    make_model_fn,
    saved_steps,
    train_input_fn,
    v1,
)
from tests.helpers.forked import run
from tpudata.errors import TpudataError, UsageError
from tpudata.estimator import (
    CrossShardOptimizer,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    ModelFnError,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
    TrainSpec,
    WarmStartSettings,
    train_and_evaluate,
)

# Arguments of the original, in their order (tensorflow_estimator 2.15), as far as they matter here.
ORIGINAL_ORDER: dict[Callable[..., Any], list[str]] = {
    TPUEstimator.__init__: [
        *("self", "model_fn", "model_dir", "config", "params", "use_tpu", "train_batch_size", "eval_batch_size"),
        *("predict_batch_size", "batch_axis", "eval_on_tpu", "export_to_tpu", "export_to_cpu", "warm_start_from"),
        *("embedding_config_spec", "export_saved_model_api_version"),
    ],
    TPUEstimator.train: ["self", "input_fn", "hooks", "steps", "max_steps", "saving_listeners"],
    TPUEstimator.evaluate: ["self", "input_fn", "steps", "hooks", "checkpoint_path", "name"],
    TPUEstimator.predict: ["self", "input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"],
    TPUConfig.__init__: [
        *("self", "iterations_per_loop", "num_shards", "num_cores_per_replica", "per_host_input_for_training"),
        *("tpu_job_name", "initial_infeed_sleep_secs", "input_partition_dims", "eval_training_input_configuration"),
        *("experimental_host_call_every_n_steps", "experimental_allow_per_host_v2_parallel_get_next"),
        "experimental_feed_hook",
    ],
    WarmStartSettings.__init__: [
        *(
            "self",
            "ckpt_to_initialize_from",
            "vars_to_warm_start",
            "var_name_to_vocab_info",
            "var_name_to_prev_var_name",
        )
    ],
    Estimator.__init__: ["self", "model_fn", "model_dir", "config", "params", "warm_start_from"],
    RunConfig.__init__: ["self", "tpu_config", "evaluation_master", "master", "cluster"],
    TPUEstimatorSpec.__init__: [
        *("self", "mode", "predictions", "loss", "train_op", "eval_metrics", "export_outputs", "scaffold_fn"),
        *("host_call", "training_hooks", "evaluation_hooks", "prediction_hooks"),
    ],
    EstimatorSpec.__init__: [
        *("self", "mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs"),
        *("training_chief_hooks", "training_hooks", "scaffold", "evaluation_hooks", "prediction_hooks"),
    ],
    TrainSpec: ["input_fn", "max_steps", "hooks", "saving_listeners"],
    EvalSpec: ["input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs"],
    CrossShardOptimizer.__init__: ["self", "opt", "reduction", "name", "group_assignment"],
}


def test_public_names_are_sorted_and_documented() -> None:
    assert tpudata.estimator.__all__ == sorted(tpudata.estimator.__all__)
    for name in tpudata.estimator.__all__:
        # TensorFlow documents its hooks.
        assert getattr(tpudata.estimator, name).__doc__ or hasattr(v1.train, name)


@pytest.mark.parametrize("function", ORIGINAL_ORDER, ids=lambda function: function.__qualname__)
def test_positional_arguments_have_the_original_order(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    positional = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    assert positional == ORIGINAL_ORDER[function][: len(positional)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": object()}, ValueError, "RunConfig"),
        ({"params": {"batch_size": 8}}, ValueError, "'batch_size'"),
        ({"params": {"context": 8}}, ValueError, "'context'"),
        ({"params": [1]}, TypeError, "params"),
        ({"train_batch_size": 0}, ValueError, "train_batch_size"),
        ({"eval_batch_size": -8}, ValueError, "eval_batch_size"),
        ({"predict_batch_size": 8.0}, TypeError, "predict_batch_size"),
        ({"train_batch_size": "8"}, TypeError, "train_batch_size"),
        ({"train_batch_size": True}, TypeError, "train_batch_size"),
        ({"use_tpu": True}, ValueError, "train_batch_size"),
        ({"export_to_cpu": False}, ValueError, "leaves nothing to export"),
        ({"export_to_tpu": 1}, TypeError, "export_to_tpu"),
        ({"embedding_config_spec": object()}, ValueError, "embedding_config_spec"),
        ({"export_saved_model_api_version": 2}, ValueError, "export_saved_model_api_version"),
        ({"config": RunConfig(master="grpc://10.0.0.1:8470")}, ValueError, "names a TPU"),
        (
            {"config": RunConfig(evaluation_master="grpc://10.0.0.1:8470")},
            ValueError,
            "evaluation_master=.* names a TPU",
        ),
        (
            {"config": RunConfig(master="a", evaluation_master="b"), "use_tpu": True, "train_batch_size": 8},
            ValueError,
            "'b'.* differs from master='a'",
        ),
        ({"batch_axis": 0}, TypeError, "batch_axis"),
        ({"model_dir": ""}, ValueError, r"TPUEstimator\(model_dir=''\) names no folder\. Pass a path, or None"),
        ({"batch_axis": (0, 1.0)}, TypeError, "batch_axis"),
        (
            {"batch_axis": (0, 0), "config": RunConfig(TPUConfig(per_host_input_for_training=3))},
            ValueError,
            "PER_HOST_V2",
        ),
        ({"model_dir": "a", "config": RunConfig(model_dir="b")}, ValueError, "differs"),
        ({"model_fn": 3}, TypeError, "callable"),
        ({"model_fn": lambda labels, mode: (labels, mode)}, ValueError, "features"),
        ({"model_fn": lambda features, other: (features, other)}, ValueError, r"unknown arguments \(got \['other'\]"),
    ],
)
def test_the_constructor_rejects_wrong_arguments(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        TPUEstimator(**{"model_fn": make_model_fn(), "use_tpu": False, **arguments})


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("limit", ["steps", "max_steps"])
def test_integers_of_numpy_are_integers(limit: str, replicas: int | None, tmp_path: Path) -> None:
    estimators = {}
    kinds: tuple[Any, ...] = (int, np.int64, np.uint8)
    for integer in kinds:
        estimators[integer] = make_estimator(
            tmp_path / integer.__name__,
            batch_size=integer(8),
            iterations=integer(3),
            tpu_config={} if replicas is None else {"num_replicas": integer(replicas)},
            tf_random_seed=integer(5),
            save_summary_steps=integer(2),
            save_checkpoints_steps=integer(2),
            log_step_count_steps=integer(2),
            keep_checkpoint_max=integer(2),
        )
        estimators[integer].train(train_input_fn, **{limit: integer(5)})
        assert saved_steps(tmp_path / integer.__name__) == [4, 5]
        assert losses(tmp_path / integer.__name__) == losses(tmp_path / "int")
    two, seven = map(kinds[1], (2, 7))
    eval_spec = EvalSpec(train_input_fn, steps=two, throttle_secs=0)
    train_and_evaluate(estimators[np.int64], TrainSpec(train_input_fn, max_steps=seven), eval_spec)
    assert estimators[np.int64].evaluate(train_input_fn, steps=two)["global_step"] == 7


def test_rejects_construction_inside_a_graph() -> None:
    with tf.Graph().as_default(), pytest.raises(UsageError, match="disable_v2_behavior"):
        TPUEstimator(make_model_fn(), use_tpu=False)


def test_calls_inside_a_graph_do_not_add_to_it(tmp_path: Path) -> None:
    estimator, other = make_estimator(tmp_path / "a"), make_estimator(tmp_path / "b")
    with tf.Graph().as_default() as graph:
        estimator.train(train_input_fn, steps=2)
        result = estimator.evaluate(finite_input_fn(8))
        assert len(list(estimator.predict(finite_input_fn(8)))) == 8
        assert not graph.get_operations()
    assert other.train(train_input_fn, steps=2).evaluate(finite_input_fn(8)) == result


def test_takes_model_dir_from_argument_config_or_a_temporary_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path)
    for estimator in (
        TPUEstimator(make_model_fn(), model_dir=folder, use_tpu=False),
        TPUEstimator(make_model_fn(), model_dir=tmp_path, use_tpu=False),  # type: ignore[arg-type]
        TPUEstimator(make_model_fn(), config=RunConfig(model_dir=folder), use_tpu=False),
        TPUEstimator(make_model_fn(), model_dir=folder, config=RunConfig(model_dir=folder), use_tpu=False),
    ):
        assert estimator.model_dir == estimator.config.model_dir == folder
    temporary = Path(TPUEstimator(make_model_fn(), use_tpu=False).model_dir)
    assert temporary.is_dir()
    assert str(temporary) in caplog.text
    temporary.rmdir()


def test_applies_the_session_config_and_rejects_wrong_ones(tmp_path: Path) -> None:
    tf.config.list_logical_devices()  # which starts the devices
    config = RunConfig(session_config=v1.ConfigProto(allow_soft_placement=True), model_dir=str(tmp_path))
    before = tf.config.get_soft_device_placement()
    try:
        tf.config.set_soft_device_placement(False)
        TPUEstimator(make_model_fn(), config=config, use_tpu=False)
        assert tf.config.get_soft_device_placement()
    finally:
        tf.config.set_soft_device_placement(before)
    for bad, error in (
        (v1.ConfigProto(operation_timeout_in_ms=5), ValueError),
        (v1.ConfigProto(inter_op_parallelism_threads=3), ValueError),  # the devices run already
        ({"allow_soft_placement": True}, TypeError),
    ):
        with pytest.raises(error, match="session_config"):
            TPUEstimator(make_model_fn(), config=RunConfig(session_config=bad), use_tpu=False)


# The session of tensorflow/tpu's ResNet and of BERT's GPU forks, in a separate process, as it changes the session of the process.
SESSION = """
import json
import tensorflow as tf
from tpudata.estimator import RunConfig, TPUEstimator
v1 = tf.compat.v1
proto = v1.ConfigProto(isolate_session_state=True, device_count={"GPU": 1}, intra_op_parallelism_threads=3)
proto.gpu_options.allow_growth = True
rewrite = proto.graph_options.rewrite_options
rewrite.disable_meta_optimizer = True
rewrite.layout_optimizer = 2
rewrite.constant_folding = 1
proto.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
TPUEstimator(lambda features: None, config=RunConfig(session_config=proto, model_dir="unused"), use_tpu=False)
print(json.dumps([
    tf.config.optimizer.get_experimental_options(), str(tf.config.optimizer.get_jit()),
    tf.config.threading.get_intra_op_parallelism_threads(),
]))
"""


def test_applies_graph_options_of_a_session_config() -> None:
    done = run("-c", SESSION)
    assert done.returncode == 0, done.stderr
    options, jit, threads = json.loads(done.stdout)
    assert options["disable_meta_optimizer"] is True
    assert (options["layout_optimizer"], options["constant_folding"]) == (False, True)
    assert (jit, threads) == ("autoclustering", 3)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpu_options.per_process_gpu_memory_fraction", 0.5),
        ("graph_options.place_pruned_graph", True),
        ("graph_options.optimizer_options.opt_level", -1),
        ("graph_options.rewrite_options.memory_optimization", 3),
        ("use_per_session_threads", True),
    ],
)
def test_rejects_session_config_fields_without_counterpart(path: str, value: Any, tmp_path: Path) -> None:
    proto = v1.ConfigProto()
    *folders, name = path.split(".")
    place: Any = proto
    for folder in folders:
        place = getattr(place, folder)
    setattr(place, name, value)
    config = RunConfig(session_config=proto, model_dir=str(tmp_path))
    with pytest.raises(ValueError, match=rf"^RunConfig\(session_config=...\): the field '{path}' has no counterpart"):
        TPUEstimator(make_model_fn(), config=config, use_tpu=False)


def test_functions_get_mode_config_and_copies_of_params(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    config = RunConfig(model_dir=str(tmp_path))

    def input_fn(params: dict[str, Any], mode: str, config: RunConfig, input_context: Any) -> Any:
        seen[f"input_{mode}"] = copy.deepcopy(params)
        assert config.model_dir == str(tmp_path)
        assert (input_context.num_input_pipelines, input_context.num_replicas_in_sync) == (1, 1)
        params["nested"]["key"] = "changed"
        return finite_input_fn(8)({"batch_size": 8})

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any], config: RunConfig) -> TPUEstimatorSpec:
        seen[f"model_{mode}"] = copy.deepcopy(params)
        assert config.model_dir == str(tmp_path)
        return make_model_fn()(features, labels, mode, params)

    user = {"nested": {"key": "value"}, "rate": 0.5}
    estimator = TPUEstimator(
        model_fn, config=config, params=user, use_tpu=False, train_batch_size=8, eval_batch_size=16
    )
    estimator.train(input_fn)
    estimator.evaluate(input_fn)
    list(estimator.predict(input_fn))
    assert seen["input_train"] == {"nested": {"key": "value"}, "rate": 0.5, "batch_size": 8}
    assert seen["model_train"] == {**seen["input_train"], "use_tpu": False}
    assert seen["input_eval"]["batch_size"] == 16
    assert "batch_size" not in seen["input_infer"]
    assert seen["model_infer"] == {**seen["input_infer"], "use_tpu": False}
    assert user == estimator.params == {"nested": {"key": "value"}, "rate": 0.5}


def test_accepts_the_users_own_use_tpu_param(tmp_path: Path) -> None:
    estimator = TPUEstimator(make_model_fn(), model_dir=str(tmp_path), params={"use_tpu": 1}, use_tpu=False)
    assert estimator.params == {"use_tpu": 1}


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8)


def takes_nothing() -> Any:
    return dataset()


def a_number(params: dict[str, Any]) -> Any:
    return 7


def three_parts(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensors((X, Y, Y))


def ragged(params: dict[str, Any]) -> Any:
    return dataset().map(lambda f, y: (f, {"y": tf.RaggedTensor.from_tensor(y[:, None])}))


def unknown_shape(params: dict[str, Any]) -> Any:
    def parse(features: Any, labels: Any) -> Any:
        x = tf.numpy_function(lambda value: value, [features["x"]], tf.float32)
        return {"x": x}, labels

    return dataset().map(parse)


@pytest.mark.parametrize(
    ("input_fn", "error", "message"),
    [
        (3, TypeError, "callable"),
        (takes_nothing, ValueError, "params"),
        (a_number, TypeError, r"tf\.data\.Dataset"),
        (three_parts, ValueError, "3 parts"),
        (ragged, TypeError, r"got labels\['y'\] as a RaggedTensorSpec"),
        (unknown_shape, ValueError, r"features\['x'\] has an unknown shape"),
    ],
)
@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_rejects_wrong_input(mode: str, input_fn: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    with pytest.raises(error, match=message):
        list(getattr(estimator, mode)(input_fn))


def test_rejects_labels_for_a_model_fn_without_labels(tmp_path: Path) -> None:
    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        raise AssertionError

    with pytest.raises(ValueError, match="labels"):
        make_estimator(tmp_path, model_fn).train(train_input_fn, steps=1)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda _: None, TypeError, "NoneType"),
        (lambda _: TPUEstimatorSpec("eval", loss=tf.constant(1.0)), ValueError, "got 'eval', expected 'train'"),
    ],
)
def test_rejects_wrong_results_of_model_fn(result: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        return result(mode)

    assert issubclass(ModelFnError, TpudataError)
    with pytest.raises(error, match=message) as caught:
        make_estimator(tmp_path, model_fn).train(train_input_fn, steps=1)
    assert isinstance(caught.value, ModelFnError)


Pair = collections.namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda a, b: {"a": a, "b": {"c": (b,)}}, lambda f: (f["a"], f["b"]["c"][0])),
        (lambda a, b: Pair(a, b), lambda f: (f.left, f.right)),
        (lambda a, b: (a, (b, a)), lambda f: (f[1][1], f[1][0])),
    ],
)
def test_nested_features_keep_their_structure(
    pack: Callable[..., Any], unpack: Callable[..., Any], tmp_path: Path
) -> None:
    def input_fn(params: dict[str, Any], mode: str) -> Any:
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return data.map(lambda x, y: (pack(x, y), {"y": y})).batch(8)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        x, y = unpack(features)
        if mode == ModeKeys.PREDICT:
            assert labels is None
            return TPUEstimatorSpec(mode, predictions={"x": x, "y": y})
        return make_model_fn()(x, labels["y"], mode, {})

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(input_fn)
    assert estimator.evaluate(input_fn)["global_step"] == 5
    np.testing.assert_array_equal([row["y"] for row in estimator.predict(input_fn)], Y)


def test_accepts_callable_objects_and_partials(tmp_path: Path) -> None:
    import functools

    class Model:
        def __call__(self, features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
            return make_model_fn()(features, labels, mode, params)

    def input_fn(rows: int, params: dict[str, Any]) -> Any:
        return finite_input_fn(rows)(params)

    estimator = make_estimator(tmp_path, Model())
    estimator.train(functools.partial(input_fn, 16))
    assert estimator.get_variable_value("global_step") == 2


def test_two_estimators_keep_separate_variables(tmp_path: Path) -> None:
    first, second = make_estimator(tmp_path / "a"), make_estimator(tmp_path / "b")
    first.train(train_input_fn, steps=4)
    second.train(train_input_fn, steps=1)
    first.train(train_input_fn, steps=1)
    assert first.get_variable_value("global_step") == 5
    assert second.get_variable_value("global_step") == 1
    assert not v1.get_default_graph().get_collection(v1.GraphKeys.GLOBAL_VARIABLES)


def test_supports_reused_variables_and_repeated_names(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        with v1.variable_scope("net", reuse=v1.AUTO_REUSE):
            a = v1.get_variable("w", [3], initializer=v1.ones_initializer())
            b = v1.get_variable("w", [3])
        assert a is b
        plain = [tf.Variable(0.5, name="twice"), tf.Variable(0.25, name="twice")]
        outputs = tf.linalg.matvec(features["x"], a) * plain[0] + plain[1]
        assert len(v1.trainable_variables()) == 3
        loss = tf.reduce_mean((outputs - labels) ** 2)
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(train_input_fn, steps=3)
    assert estimator.get_variable_names() == ["global_step", "net/w", "twice", "twice_1"]
    assert make_estimator(tmp_path, model_fn).train(train_input_fn, max_steps=5).get_variable_value("twice") != 0.5


def test_rejects_a_model_that_changes_its_variables(tmp_path: Path) -> None:
    names = iter("abc")

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        v1.get_variable(next(names), [3])
        return make_model_fn()(features, labels, mode, {})

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(train_input_fn, hooks=[v1.train.SessionRunHook()], steps=1)
    with pytest.raises(ModelFnError, match=r"same variables.*got \[.*'b'.*expected \[.*'a'"):
        estimator.train(train_input_fn, hooks=[v1.train.SessionRunHook()], steps=1)


def by_table(x: Any) -> Any:
    start = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([0.5, 2.0]))
    return tf.reduce_sum(tf.lookup.StaticHashTable(start, 0.0).lookup(tf.cast(x[:, 0], tf.int64)))


def printed(x: Any) -> Any:
    with tf.control_dependencies([tf.print("rows", x)]):
        return tf.reduce_sum(x)


@pytest.mark.parametrize(
    ("what", "compute", "message"),
    [
        ("train", by_table, r"'hash_table' does not run on several devices.*got HashTableV2.*Compute it in input_fn"),
        ("train", printed, r"'StringFormat' does not run on several devices.*or from fetched values on the host"),
        ("train", lambda x: tf.py_function(tf.reduce_sum, [x], tf.float32), r"got EagerPyFunc"),
        ("evaluate", lambda x: tf.strings.to_number(tf.strings.as_string(x[0, 0])), r"'AsString' does not run"),
        ("predict", lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)), r"'boolean_mask/Where' depends on values"),
    ],
)
def test_several_devices_name_an_operation_they_cannot_run(
    what: str, compute: Any, message: str, tmp_path: Path
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        more = tf.reshape(compute(features["x"]), [])
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions=features["x"] + more)
        loss = tf.reduce_mean((linear(features["x"]) - labels) ** 2) + more
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": 2})
    calls: dict[str, Callable[[], Any]] = {
        "train": lambda: estimator.train(train_input_fn, steps=1),
        "evaluate": lambda: estimator.evaluate(train_input_fn, steps=1),
        "predict": lambda: next(estimator.predict(finite_input_fn(16))),
    }
    with pytest.raises(ModelFnError, match=message):
        calls[what]()


def test_only_train_runs_the_train_op(tmp_path: Path) -> None:
    """Older programs make their train_op in every mode."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        outputs = tf.linalg.matvec(features["x"], w)
        targets = tf.zeros_like(outputs) if labels is None else labels
        loss = tf.reduce_mean((outputs - targets) ** 2)
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(
            mode,
            predictions={"outputs": outputs},
            loss=loss,
            train_op=train_op,
            eval_metrics=(lambda outputs: {"mean": v1.metrics.mean(outputs)}, [outputs]),
        )

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(train_input_fn, steps=3)
    w = estimator.get_variable_value("w")
    expected = X @ w
    for _ in range(2):
        result = estimator.evaluate(finite_input_fn(40))
        assert result["global_step"] == 3
        assert result["mean"] == pytest.approx(expected.mean(), rel=1e-4)
        found = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_runs_update_ops(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        average = v1.get_variable("average", [], initializer=v1.zeros_initializer(), trainable=False)
        batch_mean = tf.reduce_mean(labels)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign_add(batch_mean))
        loss = tf.reduce_mean((v1.get_variable("w", [], initializer=v1.ones_initializer()) - labels) ** 2)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(train_input_fn, steps=5)
    assert estimator.get_variable_value("average") == pytest.approx(5 * Y.mean(), rel=1e-5)


def test_the_estimator_keeps_the_tpu_config() -> None:
    estimator = TPUEstimator(make_model_fn(), model_dir="d", config=RunConfig(TPUConfig(7)), use_tpu=False)
    assert estimator.config.tpu_config.iterations_per_loop == 7
