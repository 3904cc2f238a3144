"""What `tpudata doctor` asks in a separate process, which can be ended if no answer comes.

    python -m tpudata.cli._doctor_probe LIFELINE KIND [WORD ...]

ends with the process that holds the other end of a pipe, whose descriptor is LIFELINE. It prints one line of JSON:
{"found": "text"}, or {"problem": "text"} if there is nothing or it is not as it should be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tpudata._tensorflow import require_tensorflow
from tpudata.console.process import end_with
from tpudata.console.quiet import quiet_loading
from tpudata.console.tables import counted
from tpudata.errors import TpudataError
from tpudata.format import open_dataset

# Rows of the square matrices, and about how long they are multiplied, in seconds.
_ROWS = {"CPU": 1024, "GPU": 4096, "TPU": 4096}
_SECONDS = 0.5


def devices() -> str:
    """Return a line on the CPU and GPUs that TensorFlow sees here, and how fast the first of each multiplies matrices."""
    tf = _tensorflow()
    words = []
    for kind in ("CPU", "GPU"):
        found = tf.config.list_logical_devices(kind)
        if found:
            words.append(f"{counted(len(found), kind)}: {_speed(tf, kind, _on_device(tf, found[0].name))}")
    return ", ".join(words)


def tpu(name: str, zone: str, project: str, limit: str) -> str:
    """Return a line on a TPU (an empty name: the one tpu_system finds), its cores, and how fast they multiply matrices."""
    tf = _tensorflow()
    from tpudata.estimator import tpu_system

    with tpu_system(name or None, zone=zone or None, project=project or None, timeout=float(limit)) as strategy:

        def run(function: Any, *values: Any) -> float:
            per_core = strategy.run(function, values)
            return float(strategy.reduce("SUM", per_core, axis=None))

        cores = strategy.num_replicas_in_sync
        return f"{counted(cores, 'core')}: {_speed(tf, 'TPU', run, cores)}"


def credentials() -> str:
    """Whose credentials google-cloud-storage would show."""
    from tpudata.storage.gcs.session import ANONYMOUS, EMULATOR, IMPERSONATED, is_switched_on

    if os.environ.get(EMULATOR):
        return f"none needed: {EMULATOR} is {os.environ[EMULATOR]}"
    if is_switched_on(ANONYMOUS):
        return f"none shown: {ANONYMOUS} is {os.environ[ANONYMOUS]}"
    import google.auth

    found, project = google.auth.default()
    account = getattr(found, "service_account_email", None) or type(found).__module__.rpartition(".")[2]
    if other := os.environ.get(IMPERSONATED, "").strip():
        account = f"{other.rpartition(',')[2].strip()}, by way of {account}"
    return f"{account}, project {project or 'not set'}"


def data(folder: str) -> str:
    """Return a line on the records of a dataset."""
    splits = open_dataset(folder).manifest.splits
    return ", ".join(f"{name} {counted(split.records, 'record')}" for name, split in splits.items())


def _tensorflow() -> Any:
    with quiet_loading():
        require_tensorflow("tpudata doctor")
        import tensorflow as tf
    return tf


def _on_device(tf: Any, device: str) -> Callable[..., float]:
    def run(function: Any, *values: Any) -> float:
        with tf.device(device):
            return float(function(*values))

    return run


def _speed(tf: Any, kind: str, run: Callable[..., float], cores: int = 1) -> str:
    """How many operations a second the multiplication of matrices does, the device's own way of it."""
    rows = _ROWS[kind]
    dtype = tf.float32 if kind == "CPU" else tf.bfloat16

    @tf.function  # type: ignore[untyped-decorator]
    def multiply(times: Any) -> Any:
        matrix = tf.fill([rows, rows], tf.cast(1 / rows, dtype))
        result = tf.while_loop(lambda i, _: i < times, lambda i, x: (i + 1, tf.matmul(x, matrix)), (0, matrix))[1]
        return tf.reduce_sum(tf.cast(result, tf.float32))

    def seconds(times: int) -> float:
        started = time.monotonic()
        # Each row of the product of matrices whose values are all 1 / rows adds up to 1.
        if not abs(run(multiply, tf.constant(times)) / (rows * cores) - 1) < 0.1:
            raise TpudataError(f"The {kind} multiplies matrices wrongly. Look for another one.")
        return time.monotonic() - started

    seconds(1)  # traces
    times = max(1, min(10_000, round(_SECONDS / seconds(1))))
    rate = 2 * rows**3 * times * cores / seconds(times)
    return f"{rate / 1e9:,.0f} GFLOP/s ({dtype.name})"


_KINDS: dict[str, Callable[..., str]] = {"devices": devices, "tpu": tpu, "credentials": credentials, "data": data}


def main(words: list[str]) -> None:
    """Answers one question on stdout."""
    try:
        # What libraries print must not come between.
        with contextlib.redirect_stdout(sys.stderr):
            answer = {"found": _KINDS[words[0]](*words[1:])}
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        answer = {"problem": text.splitlines()[0]}
    print(json.dumps(answer))


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    main(sys.argv[2:])
