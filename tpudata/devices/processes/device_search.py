"""The devices that jax finds: cores of a TPU, GPUs, or any number of CPU devices.

jax starts all its devices at the first call that needs a device. The number of CPU devices must be set before that call, by the
process-wide option `jax_num_cpu_devices`.
"""

import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from tpudata.devices.errors import TPUConnectionError
from tpudata.devices.processes.tpu_pod import count_chips
from tpudata.error_text.libraries import TPU_IN_USE
from tpudata.error_text.lines import first_line
from tpudata.errors import MissingExtraError, UsageError
from tpudata.installation import format_install_command

if TYPE_CHECKING:
    import jax

_CPU_DEVICES = "jax_num_cpu_devices"


def import_jax(feature: str) -> ModuleType:
    """Import jax, and return the module.

    Args:
        feature: the feature that needs jax, for the message.

    Raises:
        MissingExtraError: jax is not installed.
    """
    # Looked up first: an ImportError inside of an installed jax has a different cause and fix.
    if importlib.util.find_spec("jax") is None:
        raise MissingExtraError(feature, "tpu")
    import jax

    module: ModuleType = jax
    return module


def has_jax_started() -> bool:
    """Return whether jax has started its devices, without starting them."""
    import jax

    num_cpu_devices = getattr(jax.config, _CPU_DEVICES)
    try:
        # jax rejects a change once its devices have started.
        jax.config.update(_CPU_DEVICES, num_cpu_devices + 1)
    except RuntimeError:
        return True
    jax.config.update(_CPU_DEVICES, num_cpu_devices)
    return False


def request_cpu_devices(num_devices: int) -> None:
    """Make jax have at least `num_devices` CPU devices when it starts; do nothing if it has started."""
    import jax

    if not has_jax_started() and getattr(jax.config, _CPU_DEVICES) < num_devices:
        jax.config.update(_CPU_DEVICES, num_devices)


def find_local_devices(num_replicas: int) -> tuple["jax.Device", ...]:
    """Return `num_replicas` jax devices of this machine: GPUs if jax finds enough, else CPU devices.

    Raises:
        UsageError: jax has already started with fewer CPU devices, or cannot start CPU devices.
        MissingExtraError: jax is not installed.
    """
    import_jax(f"TPUConfig(num_replicas={num_replicas})")
    request_cpu_devices(num_replicas)
    return select_devices(devices_per_process=num_replicas, num_processes=1)


def select_devices(devices_per_process: int, num_processes: int) -> tuple["jax.Device", ...]:
    """Return jax devices of each process, in the processes' order: GPUs if each process has enough, otherwise CPU devices.

    Args:
        devices_per_process: number of devices to take from each process, the first ones.
        num_processes: number of processes.

    Raises:
        UsageError: jax has started with fewer CPU devices, or cannot start CPU devices.
    """
    gpus = _select_first(_list_devices("gpu"), devices_per_process, num_processes)
    if gpus:
        return gpus
    cpus = _list_devices("cpu")
    selected = _select_first(cpus, devices_per_process, num_processes)
    if not selected:
        raise UsageError(
            f"TPUConfig(num_replicas={devices_per_process}) needs {devices_per_process} CPU devices of jax, which has already "
            f"started with {len(cpus) // num_processes}. Make the estimator before the program's first use of jax, or start the "
            f"program with jax.config.update({_CPU_DEVICES!r}, {devices_per_process})."
        )
    return selected


def find_tpu_devices() -> tuple["jax.Device", ...]:
    """Return the cores of the TPU, of all processes that have joined, in the order of the processes.

    Raises:
        TPUConnectionError: jax finds no TPU here; the message says why.
    """
    for module, name in (("jax", "jax"), ("libtpu", "libtpu (the driver of TPUs)")):
        if importlib.util.find_spec(module) is None:
            raise TPUConnectionError(f"use_tpu=True: {name} is not installed. Run: {format_install_command('tpu')}")
    import jax

    try:
        return _sort_devices(jax.devices("tpu"))
    except RuntimeError as error:
        raise TPUConnectionError(
            f"use_tpu=True: {_explain_missing_tpu(str(error), jax.config.jax_platforms)}"
        ) from error


def _explain_missing_tpu(reason: str, platforms: str | None) -> str:
    """Return why jax has no TPU, and the fix, from its error message and the platforms that it may use."""
    match = TPU_IN_USE.search(reason)
    if match:
        holder = f"the process {match[1]}" if match[1] else "another process"
        return f"the TPU is in use by {holder}. End that process; one process at a time can use a TPU."
    if platforms and "tpu" not in platforms.split(","):
        return f"jax may not use a TPU (got JAX_PLATFORMS={platforms}, expected tpu,cpu). Unset JAX_PLATFORMS."
    if not count_chips():
        return "this machine has no TPU chip. Run the program on a TPU VM, or pass use_tpu=False."
    return f"jax cannot start the TPU: {first_line(reason)}. Run `tpudata doctor`."


def _list_devices(platform: str) -> list["jax.Device"]:
    """Return the devices of a platform, [] if it is missing; raise UsageError if the CPU devices cannot start."""
    import jax

    try:
        return list(jax.devices(platform))
    except RuntimeError as error:
        if platform != "cpu":
            return []
        raise UsageError(
            f"jax cannot start its CPU devices: {first_line(error)}. Set JAX_PLATFORMS=cpu in the environment to train "
            "without a TPU."
        ) from error


def _select_first(
    devices: Iterable["jax.Device"], devices_per_process: int, num_processes: int
) -> tuple["jax.Device", ...]:
    """Return the first `devices_per_process` devices of each process; () if a process has fewer, or there are fewer processes."""
    devices_by_process: dict[int, list[jax.Device]] = {}
    for device in _sort_devices(devices):
        devices_by_process.setdefault(device.process_index, []).append(device)
    groups = devices_by_process.values()
    if len(groups) < num_processes or min(map(len, groups)) < devices_per_process:
        return ()
    return tuple(device for group in groups for device in group[:devices_per_process])


def _sort_devices(devices: Iterable["jax.Device"]) -> tuple["jax.Device", ...]:
    return tuple(sorted(devices, key=lambda device: (device.process_index, device.id)))
