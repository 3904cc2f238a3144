"""Probe of the TPU chips that jax sees, and of their speed, for `tpudata doctor`.

It runs in a separate process, since a TPU may not answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tpudata.console.tables import count_text
from tpudata.errors import TpudataError

# Rows of the square matrices, approximate seconds of a measurement, and the maximum number of multiplications in it.
_ROW_COUNT = 4096
_SECONDS = 0.5
_MAX_PRODUCTS = 10_000


class NoTPUError(TpudataError):
    """This machine has no TPU."""


def describe_chips() -> str:
    """Return a line on the TPU chips of this machine, with their speed.

    Raises:
        NoTPUError: there are no TPU chips; if jax is installed, the message says what runs replicas instead.
        TpudataError: the chips cannot be used, or multiply wrongly; the message says why.
    """
    from tpudata.devices.processes.device_search import find_tpu_devices, import_jax
    from tpudata.devices.processes.tpu_pod import count_chips

    jax = None
    try:
        jax = import_jax("A TPU")
        _check_version()
        devices = find_tpu_devices()
    except TpudataError as error:
        if count_chips():
            # The machine has a TPU that cannot be used.
            raise
        # Without jax, nothing is known of GPUs that could run replicas instead.
        raise NoTPUError(str(error) if jax is None else f"{_suggest_replacement(jax)} {error}") from None
    local_devices = [device for device in devices if device.process_index == jax.process_index()]
    kinds = Counter(device.device_kind for device in local_devices)
    chips = ", ".join(f"{count_text(count, 'chip')} of {kind}" for kind, count in kinds.items())
    all_chips = f" ({len(devices)} on all machines of the slice)" if len(devices) > len(local_devices) else ""
    rate = measure_multiplication_rate(jax, local_devices, "bfloat16")
    return f"{chips}{all_chips}: {rate / 1e9:,.0f} GFLOP/s (bfloat16)"


def measure_multiplication_rate(
    jax: Any, devices: Sequence[Any], dtype: str, row_count: int = _ROW_COUNT, duration: float = _SECONDS
) -> float:
    """Return the floating-point operations per second of devices that multiply matrices at the same time.

    Args:
        jax: the module `jax`.
        devices: the devices; each multiplies a separate matrix.
        dtype: name of the dtype of the matrices.
        row_count: number of rows of the square matrices.
        duration: approximate seconds of the measurement.

    Raises:
        TpudataError: a product is wrong.
    """
    shape = (row_count, row_count)
    matrices = [jax.device_put(jax.numpy.full(shape, 1 / row_count, dtype), device) for device in devices]

    @jax.jit  # type: ignore[untyped-decorator]
    def multiply(matrix: Any, product_count: Any) -> Any:
        """Multiply a matrix by itself, once for each product, and return the sum of the last product's values."""
        return jax.lax.fori_loop(0, product_count, lambda _, product: product @ matrix, matrix).astype("float32").sum()

    def measure_seconds(product_count: int) -> float:
        """Return the number of seconds in which all devices compute their products; TpudataError if a product is wrong."""
        started = time.monotonic()
        # All devices are started before `float` waits for the first.
        totals = [multiply(matrix, product_count) for matrix in matrices]
        # Each row of a product of matrices whose values are all 1 / row_count adds up to 1. `not <` is also true for NaN.
        for device, total in zip(devices, totals, strict=True):
            if not abs(float(total) / row_count - 1) < 0.1:
                raise TpudataError(
                    f"{device} multiplies matrices wrongly (got the sum {float(total):g}, expected {row_count}). Use another one."
                )
        return time.monotonic() - started

    measure_seconds(1)  # The first call compiles.
    product_count = max(1, min(_MAX_PRODUCTS, round(duration / measure_seconds(1))))
    # Each value of a product takes `row_count` multiplications and as many additions.
    return 2 * row_count**3 * product_count * len(devices) / measure_seconds(product_count)


def _check_version() -> None:
    """Raise UsageError if the installed jax is not of a version that tpudata supports."""
    # Imported here, since the module imports jax.
    from tpudata.devices.spmd.stablehlo import check_jax_version

    check_jax_version()


def _suggest_replacement(jax: Any) -> str:
    """Return a sentence on the devices that run several replicas without a TPU."""
    try:
        gpus = jax.local_devices(backend="gpu")
    except RuntimeError:
        gpus = []
    return f"Replicas run on {count_text(len(gpus), 'GPU')}." if gpus else "Replicas run on CPU devices."
