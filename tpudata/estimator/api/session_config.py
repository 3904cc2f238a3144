"""The fields of a v1 session's ConfigProto that still mean something without a session."""

from typing import Any

import tensorflow as tf


def apply_session_config(config: Any) -> None:
    """Set this process's TensorFlow options from a `tf.compat.v1.ConfigProto`.

    Args:
        config: the proto, or None for nothing to do.

    Raises:
        TypeError: not a ConfigProto.
        ValueError: a field is set that has no counterpart, or that can no longer be changed because TensorFlow's
            devices have started.
    """
    if config is None:
        return
    if not isinstance(config, tf.compat.v1.ConfigProto):
        raise TypeError(
            f"RunConfig(session_config=...) must be a tf.compat.v1.ConfigProto, got {type(config).__name__}."
        )
    for field, value in config.ListFields():
        if field.name == "allow_soft_placement":
            tf.config.set_soft_device_placement(value)
        elif field.name == "log_device_placement":
            tf.debugging.set_log_device_placement(value)
        elif field.name == "intra_op_parallelism_threads":
            _set_threads(field.name, value, tf.config.threading.set_intra_op_parallelism_threads)
        elif field.name == "inter_op_parallelism_threads":
            _set_threads(field.name, value, tf.config.threading.set_inter_op_parallelism_threads)
        else:
            raise ValueError(
                f"RunConfig(session_config=...): the field {field.name!r} has no counterpart outside a v1 session. "
                "Remove it; allow_soft_placement, log_device_placement, intra_op_parallelism_threads and "
                "inter_op_parallelism_threads are applied."
            )


def _set_threads(name: str, value: int, setter: Any) -> None:
    try:
        setter(value)
    except RuntimeError as error:
        raise ValueError(
            f"RunConfig(session_config=...): {name}={value} comes too late, TensorFlow has already started its "
            "devices. Make the estimator before the first TensorFlow operation, or remove the field."
        ) from error
