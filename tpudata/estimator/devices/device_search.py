"""The devices that jax finds: chips of a TPU, GPUs, or as many CPU devices as are asked for.

jax starts all its devices at once, at the first call that needs one, and CPU devices can only be made before.
"""

import importlib.util
import logging
from collections import Counter
from typing import Any

from tpudata.errors import MissingExtraError, UsageError
from tpudata.estimator.api.errors import TPUConnectionError
from tpudata.estimator.devices.peers import Peers
from tpudata.installation import install_command

_log = logging.getLogger("tpudata")
_WITHOUT_TPU = "Without a TPU, pass use_tpu=False."


def import_jax(feature: str) -> Any:
    """Return the module jax.

    Raises:
        MissingExtraError: it is not installed; the message names the feature that needs it.
    """
    if importlib.util.find_spec("jax") is None:
        raise MissingExtraError(feature, "tpu")
    import jax

    return jax


def make_cpu_devices(count: int) -> None:
    """Let jax make at least `count` CPU devices as it starts; change nothing if it has started.

    This sets the option `jax_num_cpu_devices` of the program, for which there is no other way.
    """
    jax = import_jax(f"TPUConfig(num_replicas={count})")
    if jax.config.jax_num_cpu_devices < count:
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            _log.debug("jax has already started its devices.")


def local_devices(num_replicas: int) -> tuple[Any, ...]:
    """Return this process's jax devices for replicas: as many GPUs if jax finds them, else CPU devices.

    Raises:
        UsageError: jax has started with fewer CPU devices.
        MissingExtraError: jax is not installed.
    """
    make_cpu_devices(num_replicas)
    return _find(num_replicas, Peers())


def devices_of_all(per_process: int, peers: Peers) -> tuple[Any, ...]:
    """Return the jax devices of all processes, in the order of the processes, as `local_devices` does for one.

    Raises:
        UsageError: the processes do not have as many devices each.
        ClusterError: another process has ended.
    """
    with peers.watched():
        return _find(per_process, peers)


def tpu_devices() -> tuple[Any, ...]:
    """Return the cores of the TPU, those of all processes that have joined in the order of the processes.

    Raises:
        TPUConnectionError: jax finds no TPU here; the message says why.
    """
    for module, what in (("jax", "jax"), ("libtpu", "libtpu, the driver of TPUs")):
        if importlib.util.find_spec(module) is None:
            raise TPUConnectionError(f"use_tpu=True: {what}, is not installed. Run: {install_command('tpu')}")
    import jax

    try:
        found = jax.devices("tpu")
    except RuntimeError as error:
        raise TPUConnectionError(_explain(str(error))) from error
    return _in_order(found)


def _explain(message: str) -> str:
    return message


def _find(count: int, peers: Peers) -> tuple[Any, ...]:
    import jax

    gpus = _first_of_each(_devices_or_none("gpu"), count, peers)
    if gpus:
        return gpus
    cpus = jax.devices("cpu")
    found = _first_of_each(cpus, count, peers)
    if not found:
        made = min(Counter(device.process_index for device in cpus).values())
        raise UsageError(
            f"TPUConfig(num_replicas={count}) needs {count} CPU devices of jax, which has already started with {made}. Make the "
            "estimator before the program's first use of jax, or start the program with "
            f"jax.config.update('jax_num_cpu_devices', {count})."
        )
    return found


def _devices_or_none(platform: str) -> list[Any]:
    import jax

    try:
        return list(jax.devices(platform))
    except RuntimeError:
        return []


def _first_of_each(devices: list[Any], count: int, peers: Peers) -> tuple[Any, ...]:
    """Return the first devices of each process, or none if one has fewer than `count`."""
    by_process: dict[int, list[Any]] = {}
    for device in _in_order(devices):
        by_process.setdefault(device.process_index, []).append(device)
    if len(by_process) < peers.count or any(len(found) < count for found in by_process.values()):
        return ()
    return tuple(device for found in by_process.values() for device in found[:count])


def _in_order(devices: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(devices, key=lambda device: (device.process_index, device.id)))
