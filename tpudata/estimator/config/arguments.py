"""Arguments of an estimator's constructor, checked once."""

import copy
import logging
import tempfile
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.checks import require, require_flag, require_type
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig, TPUConfig

_log = logging.getLogger("tpudata")
_RESERVED_PARAMS = ("batch_size", "context")


def check_batch_axis(batch_axis: Sequence[int] | None, config: TPUConfig) -> tuple[int, ...] | None:
    """Check batch_axis, and return it as a tuple; None stays None.

    Raises:
        TypeError: it is not a tuple or list of ints.
        ValueError: the input mode of training is not PER_HOST_V1.
    """
    if batch_axis is None:
        return None
    are_ints = isinstance(batch_axis, tuple | list) and all(type(axis) is int for axis in batch_axis)
    require("TPUEstimator", "batch_axis", batch_axis, are_ints, "a tuple of ints or None")
    pipeline = InputPipelineConfig(config.per_host_input_for_training)
    if pipeline is not InputPipelineConfig.PER_HOST_V1:
        raise ValueError(
            f"TPUEstimator(batch_axis={batch_axis!r}) requires the input mode PER_HOST_V1 (got {pipeline.name}, which splits no "
            "batch). Omit it."
        )
    return tuple(batch_axis)


def check_params(params: Mapping[str, object] | None) -> dict[str, object]:
    """Check params, and return a deep copy.

    Raises:
        TypeError: params is not a dict.
        ValueError: params contain a key that the estimator adds.
    """
    params_copy = copy_params(params, "TPUEstimator")
    for key in _RESERVED_PARAMS:
        if key in params_copy:
            raise ValueError(
                f"TPUEstimator(params=...) contains {key!r}, which the estimator sets itself. Rename it, or pass "
                "train_batch_size, eval_batch_size and predict_batch_size."
            )
    return params_copy


def copy_params(params: Mapping[str, object] | None, owner: str) -> dict[str, object]:
    """Return a deep copy of params; {} for None.

    Args:
        params: the params.
        owner: name of the estimator's class, for messages.

    Raises:
        TypeError: params is not a dict.
    """
    if params is None:
        return {}
    require_type(f"{owner}(params=...)", params, isinstance(params, Mapping), "a dict or None")
    return copy.deepcopy(dict(params))


def check_plain_config(config: RunConfig | None) -> RunConfig:
    """Check the config of an Estimator, and return it; return the default RunConfig for None.

    Raises:
        ValueError: config has the wrong type, or names a TPU or several replicas.
    """
    run_config: RunConfig = RunConfig() if config is None else config
    is_config = isinstance(run_config, RunConfig)
    require_type("Estimator(config=...)", run_config, is_config, "a tpudata RunConfig", ValueError)
    if run_config.master or run_config.cluster is not None or run_config.tpu_config.num_replicas not in (None, 1):
        raise ValueError(
            "Estimator runs on one device, and its RunConfig names a TPU or several replicas. Use TPUEstimator, or omit master, "
            "cluster and num_replicas."
        )
    return run_config


def choose_model_dir(model_dir: str | None, config: RunConfig, owner: str = "TPUEstimator") -> str:
    """Return the folder of checkpoints: model_dir, otherwise the RunConfig's; if both are None, a new temporary one.

    Args:
        model_dir: the estimator's argument.
        config: the RunConfig.
        owner: name of the estimator's class, for messages.

    Raises:
        ValueError: model_dir is empty, or it and the RunConfig name different folders.
    """
    argument = None if model_dir is None else str(model_dir)
    if argument == "":
        raise ValueError(f"{owner}(model_dir='') names no folder. Pass a path, or None for a temporary one.")
    if argument is not None and config.model_dir is not None and argument != config.model_dir:
        raise ValueError(
            f"{owner}(model_dir={argument!r}) differs from RunConfig(model_dir={config.model_dir!r}). Pass one of them."
        )
    folder = config.model_dir if argument is None else argument
    if folder is None:
        folder = tempfile.mkdtemp(prefix="tpudata-")
        _log.warning("No model_dir was passed: using the temporary folder %s.", folder)
    return folder


def check_export(to_tpu: object, to_cpu: object, api_version: object) -> None:
    """Check an estimator's arguments about exports.

    Args:
        to_tpu: its export_to_tpu.
        to_cpu: its export_to_cpu.
        api_version: its export_saved_model_api_version, a number or an enum of numbers.

    Raises:
        TypeError: a flag is not a bool.
        ValueError: the kind of SavedModel is not supported.
    """
    for name, flag in (("export_to_tpu", to_tpu), ("export_to_cpu", to_cpu)):
        require_flag("TPUEstimator", name, flag)
    if not to_cpu:
        raise ValueError(
            "TPUEstimator(export_to_cpu=False) leaves nothing to export: SavedModels for TPUs are not written. Omit it."
        )
    if getattr(api_version, "value", api_version) != 1:
        raise ValueError(
            f"TPUEstimator(export_saved_model_api_version={format_value(api_version)}) is for SavedModels for TPUs, which are not "
            "written. Omit it."
        )


def check_v2_behaviour(owner: str) -> None:
    """Raise an error if TensorFlow 2 behaviour is disabled.

    Args:
        owner: name of the estimator's class, for messages.

    Raises:
        UsageError: eager execution is disabled, or off inside a tf.Graph, or the control flow of TensorFlow 2 is disabled.
    """
    if not tf.executing_eagerly():
        raise UsageError(
            f"{owner} needs TensorFlow 2 behaviour: remove tf.compat.v1.disable_v2_behavior() and "
            "disable_eager_execution(), and make the estimator outside of a tf.Graph. The tf.compat.v1 calls in "
            "model_fn work without them."
        )
    if not tf.compat.v1.control_flow_v2_enabled():
        # tf.summary writes in a tf.cond, which a step on one replica would not run with the control flow of v1.
        raise UsageError(
            f"{owner} needs the control flow of TensorFlow 2: remove tf.compat.v1.disable_control_flow_v2(), or call "
            "enable_control_flow_v2() before the estimator is made."
        )
