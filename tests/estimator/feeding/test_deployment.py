"""Calls of input_fn in each input mode, with several simulated hosts on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn
from tpudata.estimator import InputPipelineConfig, ModeKeys, RunConfig, TPUConfig, TPUEstimator, TPUEstimatorSpec
from tpudata.estimator import tpu_estimator as estimator_module
from tpudata.estimator.devices import topology as topology_module

Mode = InputPipelineConfig
# Of 4 replicas on 2 hosts, and a global batch of 16 rows: calls, batch size of input_fn and of model_fn.
TRAINING = [
    (Mode.PER_SHARD_V1, 4, 4, 4),
    (Mode.PER_HOST_V1, 2, 8, 4),
    (Mode.PER_HOST_V2, 2, 4, 4),
    (Mode.BROADCAST, 1, 16, 16),
]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the replicas lie on several hosts, or be those of a TPU."""

    def pretend(num_hosts: int = 1, is_tpu: bool = False) -> None:
        def topology(num_replicas: int | None) -> topology_module.Topology:
            return topology_module.Topology(topology_module.local_topology(num_replicas).strategy, num_hosts, is_tpu)

        monkeypatch.setattr(estimator_module, "local_topology", topology)
        monkeypatch.setattr(estimator_module, "tpu_topology", lambda _: topology(4))

    return pretend


class Calls:
    """An input_fn that writes down how it is called."""

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
def test_training(mode: Mode, calls: int, batch_size: int, model_batch_size: int, pretend: Any, tmp_path: Path) -> None:
    pretend(num_hosts=2)
    seen: list[int] = []

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        assert features["x"].shape[0] == params["batch_size"]
        assert (params["context"].num_replicas, params["context"].num_hosts) == (4, 2)
        assert params["use_tpu"] is False
        seen.append(params["batch_size"])
        return make_model_fn()(features, labels, mode, params)

    recorded = Calls(train_input_fn)
    config = {"num_replicas": 4, "per_host_input_for_training": mode}
    estimator = make_estimator(tmp_path, model_fn, batch_size=16, tpu_config=config)
    if mode is Mode.PER_HOST_V2:
        estimator.train(recorded, steps=2)
    else:
        estimator.check_model(recorded, "train")
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * calls
    assert set(seen) == {model_batch_size}
    consumed = 4 // calls
    hosts = [i * consumed // 2 for i in range(calls)]
    assert recorded.deployments == [(hosts[i], i, calls, consumed) for i in range(calls)]
    # What a step takes: of PER_HOST_V2 a batch for each replica, else one of each call.
    batches = 4 if mode is Mode.PER_HOST_V2 else calls
    assert recorded.pipelines == [(i, calls, batches) for i in range(calls)]


@pytest.mark.parametrize(
    ("mode", "calls", "batch_size"),
    [(Mode.PER_SHARD_V1, 4, 4), (Mode.PER_HOST_V1, 1, 16), (Mode.PER_HOST_V2, 1, 4), (Mode.BROADCAST, 1, 16)],
)
def test_training_on_one_host(mode: Mode, calls: int, batch_size: int, tmp_path: Path) -> None:
    recorded = Calls(train_input_fn)
    config = {"num_replicas": 4, "per_host_input_for_training": mode}
    make_estimator(tmp_path, batch_size=16, tpu_config=config).check_model(recorded, "train")
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * calls
    assert recorded.deployments == [(0, i, calls, 4 // calls) for i in range(calls)]


# Of 4 replicas on 2 hosts: calls of input_fn, its batch size and its replicas.
EVALUATION = [
    ({"per_host_input_for_training": Mode.PER_SHARD_V1}, 2, 8, 2),
    ({"per_host_input_for_training": Mode.PER_HOST_V1}, 2, 8, 2),
    ({"per_host_input_for_training": Mode.PER_HOST_V2}, 2, 4, 2),
    ({"per_host_input_for_training": Mode.BROADCAST}, 1, 16, 4),
    ({"per_host_input_for_training": Mode.SLICED}, 1, 16, 4),
    ({"eval_training_input_configuration": Mode.SLICED}, 1, 16, 4),
]


# A prediction's calls are those of an evaluation.
@pytest.mark.parametrize(
    ("what", "config", "calls", "batch_size", "replicas"),
    [
        *(("eval", *case) for case in EVALUATION),
        *(pytest.param("infer", *case, marks=pytest.mark.matrix) for case in EVALUATION[:1] + EVALUATION[3:5]),
        *(("infer", *case) for case in EVALUATION[1:3] + EVALUATION[5:]),
    ],
)
def test_evaluation_and_prediction(
    what: str, config: Any, calls: int, batch_size: int, replicas: int, pretend: Any, tmp_path: Path
) -> None:
    pretend(num_hosts=2)
    recorded = Calls(lambda params: train_input_fn(params).take(4))
    estimator = make_estimator(tmp_path, batch_size=16, tpu_config={"num_replicas": 4, **config})
    if config.get("per_host_input_for_training") is Mode.SLICED:  # check_model would check training, too
        list({"eval": estimator.evaluate, "infer": estimator.predict}[what](recorded))
    else:
        estimator.check_model(recorded, what)
    assert [params["batch_size"] for params in recorded.params] == [batch_size] * calls
    assert [deployment[1:] for deployment in recorded.deployments] == [(i, calls, replicas) for i in range(calls)]


@pytest.mark.parametrize("mode", Mode)
def test_one_device_is_called_once_in_every_mode(mode: Mode, tmp_path: Path) -> None:
    recorded = Calls(train_input_fn)
    estimator = make_estimator(tmp_path, batch_size=16, tpu_config={"per_host_input_for_training": mode})
    for what in ("train", "eval", "infer"):
        estimator.check_model(recorded, what)
    assert [params["batch_size"] for params in recorded.params] == [16] * 3
    assert recorded.pipelines == [(0, 1, 1)] * 3
    assert not recorded.deployments


def test_the_device_of_a_host_and_what_model_fn_is_not_told(pretend: Any, tmp_path: Path) -> None:
    pretend(num_hosts=2)
    devices: list[str] = []

    def input_fn(params: dict[str, Any]) -> Any:
        context = params["context"]
        devices.append(context.current_input_fn_deployment()[0])
        assert (context.num_hosts, context.num_replicas, context.num_of_replicas_per_host) == (2, 4, 2)
        return train_input_fn(params)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        with pytest.raises(RuntimeError, match="is for input_fn"):
            _ = params["context"].current_host
        with pytest.raises(RuntimeError, match="is for input_fn"):
            params["context"].current_input_fn_deployment()
        return make_model_fn()(features, labels, mode, params)

    make_estimator(tmp_path, model_fn, batch_size=16, tpu_config={"num_replicas": 4}).train(input_fn, steps=1)
    assert devices == [f"/job:localhost/replica:0/task:{host}/device:CPU:0" for host in range(2)]


@pytest.mark.parametrize(
    ("what", "name"),
    [("train", "train_batch_size"), ("evaluate", "eval_batch_size"), ("predict", "predict_batch_size")],
)
def test_batch_sizes_that_cannot_be_split(what: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}=10\) cannot be split over 4 replicas"):
        list(getattr(make_estimator(tmp_path, batch_size=10, tpu_config={"num_replicas": 4}), what)(finite_input_fn(8)))
    config = RunConfig(TPUConfig(num_replicas=4), model_dir=str(tmp_path))
    estimator = TPUEstimator(make_model_fn(), config=config, use_tpu=False)
    with pytest.raises(ValueError, match=rf"{name}=None"):
        list(getattr(estimator, what)(finite_input_fn(8)))


def test_a_broadcast_batch_need_not_be_split(tmp_path: Path) -> None:
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


def test_sliced_training(tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 4, "per_host_input_for_training": Mode.SLICED}
    with pytest.raises(ValueError, match=r"SLICED.*is for evaluation and prediction"):
        make_estimator(tmp_path, tpu_config=tpu_config).train(train_input_fn, steps=1)


def tpu_estimator(folder: Path, model_fn: Any = None, **arguments: Any) -> TPUEstimator:
    sizes = {f"{name}_batch_size": 8 for name in ("train", "eval", "predict")}
    return TPUEstimator(model_fn or make_model_fn(), model_dir=str(folder), **{**sizes, **arguments})


def test_what_holds_on_a_tpu(pretend: Any, tmp_path: Path) -> None:
    """The cores are logical CPU devices here; all but the strategy is as on a TPU."""
    pretend(is_tpu=True)
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


def test_hooks_and_the_host_s_device_on_a_tpu(pretend: Any, tmp_path: Path) -> None:
    pretend(is_tpu=True)
    steps: list[int] = []
    devices: list[str] = []

    class Hook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is untyped
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_values
            steps.append(int(run_context.session.run(tf.compat.v1.train.get_global_step())))

    def input_fn(params: dict[str, Any]) -> Any:
        devices.append(params["context"].current_input_fn_deployment()[0])
        return train_input_fn(params)

    estimator = tpu_estimator(tmp_path, config=RunConfig(TPUConfig(num_shards=4, iterations_per_loop=3)))
    estimator.train(input_fn, hooks=[Hook()], max_steps=8)
    assert steps == [3, 6, 8]
    assert devices == ["/job:worker/replica:0/task:0/device:CPU:0"]


def test_evaluation_next_to_the_replicas(tmp_path: Path) -> None:
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
