import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import (
    EstimatorSpec,
    EvalSpec,
    InputPipelineConfig,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
    TrainSpec,
    WarmStartSettings,
)


def test_defaults_equal_the_originals() -> None:
    config = RunConfig()
    assert config.tpu_config.iterations_per_loop == 2
    assert config.tpu_config.num_shards is None
    assert config.tpu_config.per_host_input_for_training is InputPipelineConfig.PER_HOST_V1
    assert (config.save_summary_steps, config.save_checkpoints_secs, config.save_checkpoints_steps) == (100, 600, None)
    assert (config.keep_checkpoint_max, config.log_step_count_steps, config.tf_random_seed) == (5, 100, None)
    assert config.model_dir is None
    assert config.tpu_config.eval_training_input_configuration is InputPipelineConfig.PER_HOST_V1
    assert [mode.value for mode in InputPipelineConfig] == [1, 2, 3, 4, 5]


def test_positional_arguments_have_the_original_order() -> None:
    config = TPUConfig(100, 1)
    assert (config.iterations_per_loop, config.num_shards) == (100, 1)
    assert RunConfig(config, "", "").tpu_config is config
    assert RunConfig(None).tpu_config == TPUConfig()  # type: ignore[arg-type]
    by_position = TPUConfig(2, None, None, 3, None, None, None, InputPipelineConfig.SLICED)
    assert by_position.per_host_input_for_training is InputPipelineConfig.PER_HOST_V2
    assert by_position.eval_training_input_configuration is InputPipelineConfig.SLICED
    with pytest.raises(TypeError, match=r"Pass the folder as model_dir="):
        RunConfig("folder")  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "mode"), [(False, 1), (True, 2), (3, 3), (InputPipelineConfig.SLICED, 5)])
def test_accepts_bools_and_numbers_as_input_pipeline_modes(given: bool | int, mode: int) -> None:
    assert TPUConfig(per_host_input_for_training=given).per_host_input_for_training == InputPipelineConfig(mode)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600)])
def test_iterations_per_loop_accepts_a_time(text: str, seconds: int) -> None:
    assert TPUConfig(text).loop_seconds == seconds
    assert TPUConfig(30).loop_seconds is None


@pytest.mark.parametrize("text", ["", "30", "s", "0s", "5 m", "1d", "-3s", "1.5h", "30S", "٣s"])
def test_rejects_malformed_loop_times(text: str) -> None:
    with pytest.raises(ValueError, match="iterations_per_loop"):
        TPUConfig(text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"iterations_per_loop": 0}, ValueError),
        ({"iterations_per_loop": -1}, ValueError),
        ({"iterations_per_loop": 2.5}, TypeError),
        ({"iterations_per_loop": True}, TypeError),
        ({"iterations_per_loop": None}, TypeError),
        ({"num_shards": 0}, ValueError),
        ({"num_shards": "1"}, TypeError),
        ({"num_replicas": 0}, ValueError),
        ({"num_replicas": True}, TypeError),
        ({"num_cores_per_replica": 0}, ValueError),
        ({"num_cores_per_replica": 3}, ValueError),
        ({"input_partition_dims": [[1, 2]]}, ValueError),
        ({"initial_infeed_sleep_secs": -1}, ValueError),
        ({"initial_infeed_sleep_secs": "1"}, TypeError),
        ({"experimental_host_call_every_n_steps": 0}, ValueError),
        ({"eval_training_input_configuration": 4}, ValueError),
        ({"per_host_input_for_training": 6}, ValueError),
    ],
)
def test_tpu_config_rejects_wrong_arguments(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        TPUConfig(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tpu_config": {"iterations_per_loop": 2}}, TypeError),
        ({"master": 8470}, TypeError),
        ({"tpu_name": ["a", "b"]}, TypeError),
        ({"cluster": "grpc://10.0.0.1:8470"}, TypeError),
        ({"model_dir": ""}, ValueError),
        ({"save_summary_steps": 0}, ValueError),
        ({"save_checkpoints_steps": 1.5}, TypeError),
        ({"save_checkpoints_secs": 0}, ValueError),
        ({"save_checkpoints_secs": "600"}, TypeError),
        ({"keep_checkpoint_max": -1}, ValueError),
        ({"log_step_count_steps": -1}, ValueError),
        ({"tf_random_seed": 1.0}, TypeError),
        ({"keep_checkpoint_every_n_hours": 0}, ValueError),
        ({"keep_checkpoint_every_n_hours": "1"}, TypeError),
        ({"keep_checkpoint_every_n_hours": 10**400}, ValueError),
        ({"train_distribute": object()}, ValueError),
        ({"eval_distribute": object()}, ValueError),
        ({"experimental_distribute": object()}, ValueError),
        ({"device_fn": print}, ValueError),
        ({"experimental_max_worker_delay_secs": 3}, ValueError),
        ({"protocol": "grpc+verbs"}, ValueError),
        ({"session_creation_timeout_secs": 0}, ValueError),
    ],
)
def test_run_config_rejects_wrong_arguments(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        RunConfig(**arguments)  # type: ignore[arg-type]


def test_accepts_only_one_checkpoint_interval() -> None:
    assert RunConfig(save_checkpoints_steps=10).save_checkpoints_secs is None
    assert RunConfig(save_checkpoints_secs=None).save_checkpoints_secs is None
    with pytest.raises(ValueError, match="pass one of them"):
        RunConfig(save_checkpoints_steps=10, save_checkpoints_secs=60)


def test_replace_swaps_the_checkpoint_interval() -> None:
    by_steps = RunConfig(model_dir="d").replace(save_checkpoints_steps=10)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs, by_steps.model_dir) == (10, None, "d")
    by_seconds = by_steps.replace(save_checkpoints_secs=5)
    assert (by_seconds.save_checkpoints_steps, by_seconds.save_checkpoints_secs) == (None, 5)
    with pytest.raises(ValueError, match=r"^RunConfig.replace got \['no_such_field'\] \(expected some of tpu_config"):
        by_steps.replace(no_such_field=1)


# The values that tensorflow/tpu's programs pass.
HARMLESS: dict[str, Any] = {
    "num_cores_per_replica": 1,
    "tpu_job_name": None,
    "initial_infeed_sleep_secs": 30,
    "input_partition_dims": None,
    "experimental_allow_per_host_v2_parallel_get_next": True,
    "computation_shape": [1, 1, 1],
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_cores_per_replica": 2},
        {"computation_shape": [1, 2]},
        {"input_partition_dims": [[1, 2], None], "num_cores_per_replica": 1},
        {"tpu_job_name": "other"},
        {"experimental_host_call_every_n_steps": 2},
        {"experimental_feed_hook": print},
    ],
)
def test_only_a_tpu_rejects_tpu_layout_options(arguments: dict[str, Any], tmp_path: Path) -> None:
    def model_fn(features: Any) -> Any: ...

    config = RunConfig(TPUConfig(**arguments), model_dir=str(tmp_path))
    TPUEstimator(model_fn, config=config, use_tpu=False)
    for options in ({}, {"use_tpu": False, "rehearse": True}):
        with pytest.raises(ValueError, match=rf"^TPUConfig\({next(iter(arguments))}=.* use_tpu=True: .*\. \w+"):
            TPUEstimator(model_fn, config=config, train_batch_size=8, **options)  # type: ignore[arg-type]


def test_accepts_harmless_values_of_unsupported_options(tmp_path: Path) -> None:
    def model_fn(features: Any) -> Any: ...

    config = RunConfig(TPUConfig(**HARMLESS), protocol="grpc", checkpoint_save_graph_def=False, model_dir=str(tmp_path))
    TPUEstimator(model_fn, config=config, train_batch_size=8, export_to_tpu=False)


def test_configs_and_specs_have_namedtuple_methods() -> None:
    config = TPUConfig(5)
    assert config._fields[:3] == TPUConfig._fields[:3] == ("iterations_per_loop", "num_shards", "num_cores_per_replica")
    assert config._asdict()["iterations_per_loop"] == 5
    assert config._replace(iterations_per_loop=7) == TPUConfig(7)
    assert config == TPUConfig(5)
    with pytest.raises(ValueError, match=r"^TPUConfig._replace got \['no_such'\]"):
        config._replace(no_such=1)
    train = TrainSpec(print, max_steps=3)
    assert train._replace(max_steps=4) == TrainSpec(print, max_steps=4)
    assert EvalSpec(print)._asdict()["throttle_secs"] == 600
    assert WarmStartSettings("a")._fields[2] == "var_name_to_vocab_info"
    spec = TPUEstimatorSpec("infer", predictions={"a": tf.zeros([2])})
    assert list(spec._replace(predictions={"b": tf.zeros([2])}).predictions or {}) == ["b"]
    assert EstimatorSpec._fields[5] == "export_outputs"
    with pytest.raises(ValueError, match="no loss"):
        spec._replace(mode="train")


def test_a_process_without_a_cluster_is_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = RunConfig()
    assert config.cluster_spec.as_dict() == {}
    assert (config.is_chief, config.task_type, config.task_id, config.global_id_in_cluster) == (True, "worker", 0, 0)
    assert (config.num_worker_replicas, config.num_ps_replicas, config.service) == (1, 0, None)
    assert (config.master, config.evaluation_master) == ("", "")
    named = RunConfig(master="a")
    assert (named.master, named.evaluation_master) == ("a", "a")
    assert named.replace(master="b").evaluation_master == "b"
    # The value of a flag for local evaluation; TPUEstimator rejects other addresses.
    assert RunConfig(evaluation_master="local").evaluation_master == "local"


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


# As the RunConfig of TensorFlow 2.15 has them: is_chief, global_id_in_cluster, num_worker_replicas, num_ps_replicas. It takes no
# cluster of workers alone, which tf.distribute has.
@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        (CLUSTER, {"type": "chief", "index": 0}, (True, 0, 3, 1)),
        (CLUSTER, {"type": "worker", "index": 0}, (False, 1, 3, 1)),
        (CLUSTER, {"type": "worker", "index": "1"}, (False, 2, 3, 1)),
        (CLUSTER, {"type": "ps", "index": 0}, (False, 3, 3, 1)),
        ({"worker": ["b:1", "c:1"]}, {"type": "worker", "index": 0}, (True, 0, 2, 0)),
        ({"worker": ["b:1", "c:1"]}, {"type": "worker", "index": 1}, (False, 1, 2, 0)),
        (CLUSTER, {"type": "evaluator", "index": 0}, (False, None, 0, 0)),
        ({"master": ["m:1"], "worker": ["b:1"]}, {"type": "worker", "index": 0}, (False, 1, 2, 0)),
        ({"chief": ["a:1"]}, {"type": "chief", "index": 0}, (True, 0, 1, 0)),
    ],
)
def test_tf_config_sets_the_task_of_a_cluster(
    cluster: Any, task: Any, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task, "service": {"key": 1}}))
    config = RunConfig().replace(save_summary_steps=3)
    found = config.is_chief, config.global_id_in_cluster, config.num_worker_replicas, config.num_ps_replicas
    assert found == expected
    assert (config.task_type, config.task_id) == (task["type"], int(task["index"]))
    assert config.cluster_spec.as_dict() == ({} if config.task_type == "evaluator" else cluster)
    assert config.service == {"key": 1}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": []}',
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}',
        '{"task": {"type": "worker", "index": -1}}',
        '{"task": "worker"}',
        '{"cluster": {}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": null}',
        '{"cluster": {"worker": [1, 2]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": {"x": "a:1"}}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a", "b:1"]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:1", ""]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:99999", "b:1"]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": ["worker"]}}',
        '{"task": {"index": 1e400}}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(f'{{"task": "{"long" * 1000}"}}', id="long"),
    ],
)
def test_rejects_a_malformed_tf_config_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=r"^TF_CONFIG in the environment[^\n]{1,300}$") as caught:
        RunConfig()
    # So commands print only the line.
    assert isinstance(caught.value, UsageError)


def test_configs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        RunConfig().model_dir = "x"  # type: ignore[misc]


def test_keeps_the_session_config() -> None:
    proto = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    assert RunConfig(session_config=proto).session_config is proto


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator_address": "a:1"}, r"num_processes=...\): got None \(expected a whole number from 1\)"),
        ({"num_processes": 2, "process_id": 0}, r"coordinator_address=...\): got None \(expected HOST:PORT"),
        ({"coordinator_address": "a", "num_processes": 2, "process_id": 0}, r"coordinator_address=...\): got 'a'"),
        (
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 2},
            r"got 2 of 2 processes \(expected 0 to 1\)",
        ),
        ({"coordinator_address": "a:1", "num_processes": 2, "process_id": -1}, r"process_id=...\): got -1"),
        ({"coordinator_address": "a:1", "num_processes": True, "process_id": 0}, r"num_processes=...\): got True"),
        (
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 0, "tf_config": {}},
            r"both describe the cluster\. Pass tf_config or the other three",
        ),
    ],
)
def test_rejects_processes_that_are_not_fully_described(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**arguments)


def test_process_arguments_take_precedence_over_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}))
    config = RunConfig(coordinator_address="a:1", num_processes=3, process_id=1)
    assert (config.num_worker_replicas, config.global_id_in_cluster) == (3, 1)
