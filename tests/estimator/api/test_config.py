import pytest
import tensorflow as tf

from tpudata.estimator import InputPipelineConfig, RunConfig, TPUConfig


def test_defaults_are_the_original_ones() -> None:
    config = RunConfig()
    assert config.tpu_config.iterations_per_loop == 2
    assert config.tpu_config.num_shards is None
    assert config.tpu_config.per_host_input_for_training is InputPipelineConfig.PER_HOST_V1
    assert (config.save_summary_steps, config.save_checkpoints_secs, config.save_checkpoints_steps) == (100, 600, None)
    assert (config.keep_checkpoint_max, config.log_step_count_steps, config.tf_random_seed) == (5, 100, None)
    assert config.model_dir is None
    assert config.tpu_config.eval_training_input_configuration is InputPipelineConfig.PER_HOST_V1
    assert [mode.value for mode in InputPipelineConfig] == [1, 2, 3, 4, 5]


def test_arguments_go_by_position_as_in_ported_programs() -> None:
    config = TPUConfig(100, 1)
    assert (config.iterations_per_loop, config.num_shards) == (100, 1)
    assert RunConfig(config, "", "").tpu_config is config
    assert RunConfig(None).tpu_config == TPUConfig()  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "mode"), [(False, 1), (True, 2), (3, 3), (InputPipelineConfig.SLICED, 5)])
def test_input_pipeline_modes(given: bool | int, mode: int) -> None:
    assert TPUConfig(per_host_input_for_training=given).per_host_input_for_training == InputPipelineConfig(mode)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600)])
def test_loop_time(text: str, seconds: int) -> None:
    assert TPUConfig(text).loop_seconds == seconds
    assert TPUConfig(30).loop_seconds is None


@pytest.mark.parametrize("text", ["", "30", "s", "0s", "5 m", "1d", "-3s", "1.5h", "30S", "٣s"])
def test_bad_loop_time(text: str) -> None:
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
        ({"eval_training_input_configuration": 4}, ValueError),
        ({"per_host_input_for_training": 6}, ValueError),
    ],
)
def test_tpu_config_refuses(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        TPUConfig(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tpu_config": {"iterations_per_loop": 2}}, TypeError),
        ({"master": 8470}, TypeError),
        ({"tpu_name": ["a", "b"]}, TypeError),
        ({"cluster": "grpc://10.0.0.1:8470"}, TypeError),
        ({"evaluation_master": "grpc://10.0.0.1:8470"}, ValueError),
        ({"model_dir": ""}, ValueError),
        ({"save_summary_steps": 0}, ValueError),
        ({"save_checkpoints_steps": 1.5}, TypeError),
        ({"save_checkpoints_secs": 0}, ValueError),
        ({"save_checkpoints_secs": "600"}, TypeError),
        ({"keep_checkpoint_max": -1}, ValueError),
        ({"log_step_count_steps": -1}, ValueError),
        ({"tf_random_seed": 1.0}, TypeError),
    ],
)
def test_run_config_refuses(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        RunConfig(**arguments)  # type: ignore[arg-type]


def test_one_checkpoint_interval() -> None:
    assert RunConfig(save_checkpoints_steps=10).save_checkpoints_secs is None
    assert RunConfig(save_checkpoints_secs=None).save_checkpoints_secs is None
    with pytest.raises(ValueError, match="give one of them"):
        RunConfig(save_checkpoints_steps=10, save_checkpoints_secs=60)


def test_replace_swaps_the_checkpoint_interval() -> None:
    by_steps = RunConfig(model_dir="d").replace(save_checkpoints_steps=10)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs, by_steps.model_dir) == (10, None, "d")
    by_seconds = by_steps.replace(save_checkpoints_secs=5)
    assert (by_seconds.save_checkpoints_steps, by_seconds.save_checkpoints_secs) == (None, 5)
    with pytest.raises(TypeError):
        by_steps.replace(no_such_field=1)


def test_configs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        RunConfig().model_dir = "x"  # type: ignore[misc]


def test_session_config_is_kept() -> None:
    proto = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    assert RunConfig(session_config=proto).session_config is proto
