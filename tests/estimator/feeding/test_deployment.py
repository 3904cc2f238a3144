"""Calls of input_fn in each input mode, on one host and on two simulated hosts."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology, make_local_topology
from tpudata.estimator import (
    CrossShardOptimizer,
    InputPipelineConfig,
    ModeKeys,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
)
from tpudata.estimator import tpu_estimator as estimator_module
from tpudata.estimator.feeding.deployment import Deployment, TPUContext
from tpudata.estimator.feeding.replica_elements import ReplicaElements
from tpudata.estimator.feeding.user_model import UserModel

Mode = InputPipelineConfig
# For 4 replicas on 2 hosts and a global batch of 16 rows: calls, and the batch sizes of input_fn and model_fn.
TRAINING = [
    (Mode.PER_SHARD_V1, 4, 4, 4),
    (Mode.PER_HOST_V1, 2, 8, 4),
    (Mode.PER_HOST_V2, 2, 4, 4),
]


@pytest.fixture
def pretend_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 4 CPU devices be the cores of a TPU."""
    topology = dataclasses.replace(make_local_topology(4), is_tpu=True)
    monkeypatch.setattr(estimator_module, "connect_tpu", lambda _: topology)


class OneOfTwo(Peers):
    """One of two processes, without connections."""

    count = 2

    def __init__(self, index: int) -> None:
        self.index = index


def call_on_two_hosts(
    input_fn: Callable[..., Any], mode: str, config: Mapping[str, Any], batch: int = 16
) -> list[Deployment]:
    """Call input_fn as each of two hosts with 4 replicas does; return their deployments."""
    tpu_config = TPUConfig(**config)
    sizes = dict.fromkeys((ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT), batch)
    user_model = UserModel(make_model_fn(), "", RunConfig(tpu_config), {}, sizes)
    deployments = [Deployment(mode, Topology(4, peers=OneOfTwo(host)), tpu_config, batch) for host in range(2)]
    for host, deployment in enumerate(deployments):
        call = functools.partial(user_model.call_input, input_fn, deployment)
        ReplicaElements(call, deployment, None).make_worker_dataset(2, host)
    return deployments


class Calls:
    """An input_fn that records its calls."""

    def __init__(self, input_fn: Callable[..., Any]) -> None:
        self.input_fn = input_fn
        self.params: list[dict[str, Any]] = []
        self.deployments: list[tuple[Any, ...]] = []
        self.pipelines: list[tuple[int, int, int]] = []

    def __call__(self, params: dict[str, Any], input_context: Any) -> Any:
        self.params.append(params)
        if "context" in params:
            context = params["context"]
            self.deployments.append((context.current_host, *context.current_input_fn_deployment()[1:]))
        self.pipelines.append(
            (input_context.input_pipeline_id, input_context.num_input_pipelines, input_context.num_replicas_in_sync)
        )
        return self.input_fn(params)


@pytest.mark.parametrize(("mode", "calls", "batch_size", "model_batch_size"), TRAINING)
def test_training_calls_input_fn_by_mode_on_two_hosts(
    mode: Mode, calls: int, batch_size: int, model_batch_size: int
) -> None:
    recorded = Calls(train_input_fn)
    deployments = call_on_two_hosts(recorded, ModeKeys.TRAIN, {"per_host_input_for_training": mode})
    turns = range(calls)
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * calls
    consumed = 4 // calls
    assert recorded.deployments == [(i * consumed // 2, i, calls, consumed) for i in turns]
    # A step takes a batch per replica in PER_HOST_V2, and otherwise one per call.
    batches = 4 if mode is Mode.PER_HOST_V2 else calls
    assert recorded.pipelines == [(i, calls, batches) for i in turns]
    for deployment in deployments:
        params = deployment.make_params(None)
        assert params["batch_size"] == model_batch_size
        context = params["context"]
        assert isinstance(context, TPUContext)
        assert (context.num_replicas, context.num_hosts) == (4, 2)


@pytest.mark.parametrize(
    ("mode", "calls", "batch_size"),
    [(Mode.PER_SHARD_V1, 4, 4), (Mode.PER_HOST_V1, 1, 16), (Mode.PER_HOST_V2, 1, 4), (Mode.BROADCAST, 1, 16)],
)
def test_training_calls_input_fn_by_mode_on_one_host(mode: Mode, calls: int, batch_size: int, tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        context = params["context"]
        seen.append((context.num_replicas, context.num_hosts, params["use_tpu"]))
        assert features["x"].shape[0] == params["batch_size"]
        return make_model_fn()(features, labels, mode, params)

    recorded = Calls(train_input_fn)
    config = {"num_replicas": 4, "per_host_input_for_training": mode}
    make_estimator(tmp_path, model_fn, batch_size=16, tpu_config=config).check_model(recorded, "train")
    assert set(seen) == {(4, 1, False)}
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * calls
    assert recorded.deployments == [(0, i, calls, 4 // calls) for i in range(calls)]


# For 4 replicas on 2 hosts: calls of input_fn, its batch size and its replicas.
EVALUATION = [
    ({"per_host_input_for_training": Mode.PER_SHARD_V1}, 2, 8, 2),
    ({"per_host_input_for_training": Mode.PER_HOST_V1}, 2, 8, 2),
    ({"per_host_input_for_training": Mode.PER_HOST_V2}, 2, 4, 2),
    ({"per_host_input_for_training": Mode.BROADCAST}, 1, 16, 4),
    ({"per_host_input_for_training": Mode.SLICED}, 1, 16, 4),
    ({"eval_training_input_configuration": Mode.SLICED}, 1, 16, 4),
]


# Prediction calls input_fn as evaluation does.
@pytest.mark.parametrize(
    ("what", "config", "calls", "batch_size", "replicas"),
    [
        *(("eval", *case) for case in EVALUATION),
        *(pytest.param("infer", *case, marks=pytest.mark.matrix) for case in EVALUATION[:1] + EVALUATION[3:5]),
        *(("infer", *case) for case in EVALUATION[1:3] + EVALUATION[5:]),
    ],
)
def test_evaluation_and_prediction_call_input_fn_by_mode(
    what: str, config: Any, calls: int, batch_size: int, replicas: int
) -> None:
    recorded = Calls(lambda params: train_input_fn(params).take(4))
    call_on_two_hosts(recorded, what, config)
    turns = [0, 0] if calls == 1 else [0, 1]
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * 2
    assert [deployment[1:] for deployment in recorded.deployments] == [(i, calls, replicas) for i in turns]


@pytest.mark.parametrize("mode", Mode)
def test_one_device_gets_one_call_in_every_mode(mode: Mode, tmp_path: Path) -> None:
    recorded = Calls(train_input_fn)
    estimator = make_estimator(tmp_path, batch_size=16, tpu_config={"per_host_input_for_training": mode})
    for what in ("train", "eval", "infer"):
        estimator.check_model(recorded, what)
    assert [params["batch_size"] for params in recorded.params] == [16] * 3
    assert recorded.pipelines == [(0, 1, 1)] * 3
    assert not recorded.deployments


def test_each_host_gets_its_own_cpu() -> None:
    devices: list[str] = []

    def input_fn(params: dict[str, Any]) -> Any:
        context = params["context"]
        devices.append(context.current_input_fn_deployment()[0])
        assert (context.num_hosts, context.num_replicas, context.num_of_replicas_per_host) == (2, 4, 2)
        return train_input_fn(params)

    call_on_two_hosts(input_fn, ModeKeys.TRAIN, {})
    assert devices == ["/job:localhost/replica:0/task:0/device:CPU:0"] * 2
    with tf.device(devices[0]):
        assert tf.constant(1).device == devices[0]


def test_the_context_of_model_fn_has_no_host(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        with pytest.raises(RuntimeError, match="is for input_fn"):
            _ = params["context"].current_host
        with pytest.raises(RuntimeError, match="is for input_fn"):
            params["context"].current_input_fn_deployment()
        return make_model_fn()(features, labels, mode, params)

    estimator = make_estimator(tmp_path, model_fn, batch_size=16, tpu_config={"num_replicas": 4})
    estimator.check_model(train_input_fn, "train")


@pytest.mark.parametrize(
    ("what", "name"),
    [("train", "train_batch_size"), ("evaluate", "eval_batch_size"), ("predict", "predict_batch_size")],
)
def test_rejects_batch_sizes_that_cannot_be_split(what: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}=10\) cannot be split over 4 replicas"):
        list(getattr(make_estimator(tmp_path, batch_size=10, tpu_config={"num_replicas": 4}), what)(finite_input_fn(8)))
    config = RunConfig(TPUConfig(num_replicas=4), model_dir=str(tmp_path))
    estimator = TPUEstimator(make_model_fn(), config=config, use_tpu=False)
    with pytest.raises(ValueError, match=rf"{name}=None"):
        list(getattr(estimator, what)(finite_input_fn(8)))


def test_broadcast_accepts_a_batch_that_cannot_be_split(tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 4, "per_host_input_for_training": Mode.BROADCAST}
    estimator = make_estimator(tmp_path, batch_size=10, tpu_config=tpu_config)
    estimator.train(train_input_fn, steps=2)
    one = make_estimator(tmp_path / "one", batch_size=10).train(train_input_fn, steps=2)
    for name in one.get_variable_names():
        assert estimator.get_variable_value(name) == pytest.approx(one.get_variable_value(name), rel=1e-5)

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(10, drop_remainder=True)

    result, expected = estimator.evaluate(input_fn), one.evaluate(input_fn)
    assert result == pytest.approx(expected, rel=1e-5)
    assert len(list(estimator.predict(finite_input_fn(37)))) == 37


def test_rejects_sliced_training(tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 4, "per_host_input_for_training": Mode.SLICED}
    with pytest.raises(ValueError, match=r"SLICED.*is for evaluation and prediction"):
        make_estimator(tmp_path, tpu_config=tpu_config).train(train_input_fn, steps=1)


def tpu_estimator(folder: Path, model_fn: Any = None, **arguments: Any) -> TPUEstimator:
    sizes = {f"{name}_batch_size": 8 for name in ("train", "eval", "predict")}
    return TPUEstimator(model_fn or make_model_fn(), model_dir=str(folder), **{**sizes, **arguments})


@pytest.mark.usefixtures("pretend_tpu")
def test_a_tpu_requires_steps_and_batch_sizes_and_its_number_of_shards(tmp_path: Path) -> None:
    """The cores are CPU devices here; the rest is as on a TPU."""
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        seen.append((mode, params["use_tpu"], params["batch_size"]))
        return make_model_fn()(features, labels, mode, params)

    estimator = tpu_estimator(tmp_path, model_fn, config=RunConfig(TPUConfig(num_shards=4)))
    with pytest.raises(ValueError, match=r"train on a TPU needs a limit.*expected steps or max_steps"):
        estimator.train(train_input_fn)
    estimator.train(train_input_fn, max_steps=4)
    with pytest.raises(ValueError, match="steps"):
        estimator.evaluate(train_input_fn)
    estimator.evaluate(train_input_fn, steps=2)
    assert len(list(estimator.predict(finite_input_fn(19)))) == 19
    assert set(seen) == {(mode, True, 2) for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)}
    with pytest.raises(ValueError, match=r"num_shards=8\), but the TPU system has 4 replicas"):
        tpu_estimator(tmp_path, config=RunConfig(TPUConfig(num_shards=8))).train(train_input_fn, steps=1)
    for name in ("eval", "predict"):
        without = tpu_estimator(tmp_path, **{f"{name}_batch_size": None})
        with pytest.raises(ValueError, match=f"{name}_batch_size=None"):
            list(getattr(without, {"eval": "evaluate"}.get(name, name))(finite_input_fn(8)))


def test_a_single_tpu_core_makes_gradients_dense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Momentum moves a row again, after a step that does not use it, if its gradient is dense."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        step = tf.compat.v1.train.get_global_step()
        table = tf.compat.v1.get_variable("table", [2, 1], initializer=tf.compat.v1.ones_initializer())
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, features))
        optimizer = CrossShardOptimizer(tf.compat.v1.train.MomentumOptimizer(1.0, 0.5))
        return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices([[0] * params["batch_size"], [1] * params["batch_size"]])

    topology = dataclasses.replace(Topology(1, make_local_topology(2).devices[:1]), is_tpu=True)
    monkeypatch.setattr(estimator_module, "connect_tpu", lambda _: topology)
    on_tpu = tpu_estimator(tmp_path / "tpu", model_fn, train_batch_size=1).train(input_fn, steps=2)
    plain = tpu_estimator(tmp_path / "plain", model_fn, train_batch_size=1, use_tpu=False).train(input_fn, steps=2)
    assert on_tpu.get_variable_value("table").tolist() == [[-0.5], [0.0]]
    assert plain.get_variable_value("table").tolist() == [[0.0], [0.0]]


def test_eval_on_tpu_false_evaluates_on_one_device(tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        seen.append((mode, params["batch_size"]))
        return make_model_fn()(features, labels, mode, params)

    config = RunConfig(TPUConfig(num_replicas=4))
    estimator = tpu_estimator(tmp_path, model_fn, use_tpu=False, config=config, eval_on_tpu=False, eval_batch_size=10)
    estimator.train(train_input_fn, max_steps=3)
    result = estimator.evaluate(finite_input_fn(37))
    assert set(seen) == {(ModeKeys.TRAIN, 2), (ModeKeys.EVAL, 10)}
    assert result == pytest.approx(make_estimator(tmp_path, batch_size=10).evaluate(finite_input_fn(37)), rel=1e-5)
