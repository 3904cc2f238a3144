"""Fields of a v1 session's ConfigProto that have a counterpart without a session."""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf
from google.protobuf.message import Message

from tpudata.checks import require_type
from tpudata.estimator.api.errors import ArgumentTypeError

_APPLIED = (
    "allow_soft_placement, log_device_placement, intra_op_parallelism_threads, inter_op_parallelism_threads, device_count, "
    "gpu_options (allow_growth, visible_device_list), graph_options (rewrite_options, optimizer_options.global_jit_level) and "
    "isolate_session_state"
)
# Types of the fields of a RewriterConfig that are not toggles.
_REWRITE_TYPES = {"disable_meta_optimizer": bool, "disable_model_pruning": bool, "min_graph_nodes": int}
_TOGGLE_NAMES = (
    "layout_optimizer",
    "constant_folding",
    "shape_optimization",
    "remapping",
    "arithmetic_optimization",
    "dependency_optimization",
    "loop_optimization",
    "function_optimization",
    "debug_stripper",
    "scoped_allocator_optimization",
    "pin_to_host_optimization",
    "implementation_selector",
    "auto_mixed_precision",
)
_TOGGLE_OFF = 2  # RewriterConfig.OFF, which TensorFlow does not publish.


def apply_session_config(config: tf.compat.v1.ConfigProto | None) -> None:
    """Set this process's TensorFlow options from a `tf.compat.v1.ConfigProto`.

    Args:
        config: the proto; None changes nothing.

    Raises:
        TypeError: config is not a ConfigProto.
        ValueError: a set field has no counterpart, names GPUs that do not exist, or can no longer be changed because TensorFlow's
            devices have started.
    """
    if config is None:
        return
    is_proto = isinstance(config, tf.compat.v1.ConfigProto)
    require_type("RunConfig(session_config=...)", config, is_proto, "a tf.compat.v1.ConfigProto", ArgumentTypeError)
    for field, setting in config.ListFields():
        if field.name == "allow_soft_placement":
            tf.config.set_soft_device_placement(setting)
        elif field.name == "log_device_placement":
            tf.debugging.set_log_device_placement(setting)
        elif field.name == "intra_op_parallelism_threads":
            _apply_before_start(
                f"{field.name}={setting}",
                functools.partial(tf.config.threading.set_intra_op_parallelism_threads, setting),
            )
        elif field.name == "inter_op_parallelism_threads":
            _apply_before_start(
                f"{field.name}={setting}",
                functools.partial(tf.config.threading.set_inter_op_parallelism_threads, setting),
            )
        elif field.name == "device_count":
            _apply_device_count(setting)
        elif field.name == "gpu_options":
            _apply_gpu_options(setting)
        elif field.name == "graph_options":
            _apply_graph_options(setting)
        elif field.name != "isolate_session_state":  # There is no session whose state could be shared.
            raise _make_unsupported_error(field.name)


def _make_unsupported_error(name: str) -> ValueError:
    """Return the error about a field of the ConfigProto that is not supported."""
    return ValueError(
        f"RunConfig(session_config=...): the field {name!r} has no counterpart outside a v1 session (expected {_APPLIED}). "
        "Remove it."
    )


def _apply_device_count(counts: Mapping[str, int]) -> None:
    """Hide the devices of a type beyond its count.

    Args:
        counts: number of visible devices by type, such as "CPU" or "GPU".

    Raises:
        ValueError: the count of CPUs is not 1, or TensorFlow's devices have started.
    """
    for device_type, count in counts.items():
        devices = tf.config.list_physical_devices(device_type)
        # A session makes this number of CPU devices; without a session there is one.
        if device_type == "CPU" and count != 1:
            raise _make_unsupported_error(f"device_count[{device_type!r}]")
        if count < len(devices):
            _apply_before_start(
                f"device_count[{device_type!r}]={count}",
                functools.partial(tf.config.set_visible_devices, devices[:count], device_type),
            )


def _apply_gpu_options(options: tf.compat.v1.GPUOptions) -> None:
    """Apply allow_growth and visible_device_list.

    Raises:
        ValueError: a different field is set, a GPU does not exist, or TensorFlow's devices have started.
    """
    gpus = tf.config.list_physical_devices("GPU")
    for field, setting in options.ListFields():
        if field.name == "allow_growth":
            for gpu in gpus:
                _apply_before_start(
                    "gpu_options.allow_growth",
                    functools.partial(tf.config.experimental.set_memory_growth, gpu, setting),
                )
        elif field.name == "visible_device_list":
            # Without GPUs, any list is accepted, since there is nothing to select from.
            gpu_indices = [index.strip() for index in setting.split(",")]
            if gpus and not all(index.isdigit() and int(index) < len(gpus) for index in gpu_indices):
                raise ValueError(
                    f"RunConfig(session_config=...): gpu_options.visible_device_list={setting!r} names GPUs that do not exist "
                    f"(there are {len(gpus)})."
                )
            if gpus:
                visible_gpus = [gpus[int(index)] for index in gpu_indices]
                _apply_before_start(
                    "gpu_options.visible_device_list",
                    functools.partial(tf.config.set_visible_devices, visible_gpus, "GPU"),
                )
        else:
            raise _make_unsupported_error(f"gpu_options.{field.name}")


def _apply_graph_options(options: tf.compat.v1.GraphOptions) -> None:
    """Apply rewrite_options and global_jit_level; raise ValueError for other set fields."""
    for field, setting in options.ListFields():
        if field.name == "rewrite_options":
            tf.config.optimizer.set_experimental_options(_read_rewrite_options(setting))
        elif field.name == "optimizer_options":
            for option, level in setting.ListFields():
                if option.name != "global_jit_level":
                    raise _make_unsupported_error(f"graph_options.optimizer_options.{option.name}")
                # The levels are OFF (-1), DEFAULT (0), ON_1 and ON_2.
                tf.config.optimizer.set_jit("autoclustering" if level > 0 else False)
        else:
            raise _make_unsupported_error(f"graph_options.{field.name}")


def _read_rewrite_options(options: Message) -> dict[str, bool | int]:
    """Return the set fields of a RewriterConfig, as `tf.config.optimizer.set_experimental_options` takes them.

    Raises:
        ValueError: a set field has no counterpart there.
    """
    options_by_name: dict[str, bool | int] = {}
    for field, setting in options.ListFields():
        if field.name in _REWRITE_TYPES:
            options_by_name[field.name] = _REWRITE_TYPES[field.name](setting)
        elif field.name in _TOGGLE_NAMES:
            options_by_name[field.name] = setting != _TOGGLE_OFF
        else:
            raise _make_unsupported_error(f"graph_options.rewrite_options.{field.name}")
    return options_by_name


def _apply_before_start(setting: str, apply_setting: Callable[[], object]) -> None:
    """Call `apply_setting`, which fails once TensorFlow's devices have started.

    Args:
        setting: the setting, such as "device_count['GPU']=1", for the message.
        apply_setting: function that applies the setting.

    Raises:
        ValueError: TensorFlow's devices have started, so that the setting comes too late.
    """
    try:
        apply_setting()
    except RuntimeError as error:
        raise ValueError(
            f"RunConfig(session_config=...): {setting} comes too late: TensorFlow has already started its devices. Make the "
            "estimator before the first TensorFlow operation, or remove the field."
        ) from error
