"""What the constructor of an estimator is given, checked once."""

import copy
import logging
import tempfile
from collections.abc import Mapping
from typing import Any

from tpudata.estimator.api.config import InputPipelineConfig, RunConfig, TPUConfig

_log = logging.getLogger("tpudata")
_RESERVED_PARAMS = ("batch_size", "context")


def checked_batch_size(name: str, value: Any) -> int | None:
    """Check a batch size: a positive int, or None.

    Raises:
        TypeError: not an int.
        ValueError: not positive.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"TPUEstimator({name}=...) must be an int or None, got {value!r} ({type(value).__name__}).")
    if value < 1:
        raise ValueError(f"TPUEstimator({name}=...) must be positive, got {value}.")
    return value


def checked_batch_axis(batch_axis: Any, config: TPUConfig) -> tuple[int, ...] | None:
    """Check a batch_axis: ints, or None.

    Raises:
        TypeError: of another type.
        ValueError: the input mode splits no batch.
    """
    if batch_axis is None:
        return None
    if not isinstance(batch_axis, tuple | list) or not all(type(axis) is int for axis in batch_axis):
        raise TypeError(f"TPUEstimator(batch_axis=...) must be a tuple of ints or None, got {batch_axis!r}.")
    pipeline = InputPipelineConfig(config.per_host_input_for_training)
    if pipeline is not InputPipelineConfig.PER_HOST_V1:
        raise ValueError(
            f"TPUEstimator(batch_axis={batch_axis!r}) is for PER_HOST_V1: in the mode {pipeline.name} no batch is split."
        )
    return tuple(batch_axis)


def checked_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of params, checked.

    Raises:
        TypeError: no dict.
        ValueError: they hold what the estimator adds.
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise TypeError(f"TPUEstimator(params=...) must be a dict or None, got {type(params).__name__}.")
    for key in _RESERVED_PARAMS:
        if key in params:
            raise ValueError(
                f"TPUEstimator(params=...) holds {key!r}, which the estimator fills itself: rename it, or give "
                "train_batch_size, eval_batch_size and predict_batch_size."
            )
    return copy.deepcopy(dict(params))


def found_model_dir(model_dir: str | None, config: RunConfig) -> str:
    """Return the folder of checkpoints: as given, the RunConfig's, or a new temporary one.

    Raises:
        ValueError: two are given.
    """
    given = None if model_dir is None else str(model_dir)
    if given is not None and config.model_dir is not None and given != config.model_dir:
        raise ValueError(
            f"TPUEstimator(model_dir={given!r}) differs from RunConfig(model_dir={config.model_dir!r}): give one."
        )
    folder = given or config.model_dir
    if folder is None:
        folder = tempfile.mkdtemp(prefix="tpudata-")
        _log.warning("No model_dir was given: using the temporary folder %s.", folder)
    return folder
