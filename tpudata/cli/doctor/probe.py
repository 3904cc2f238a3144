"""Probes of `tpudata doctor` that run in a separate process, which has a time limit.

    python -m tpudata.cli.doctor.probe LIFELINE KIND [WORD ...]

ends with the process that holds the other end of a pipe, whose descriptor is LIFELINE. It prints one line of JSON:
{"found": "text"}; {"warning": "text"} if a run may be slow; {"none": "text"} if there is no TPU; {"problem": "text"} if something
is missing or would end a run.
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
from tpudata.cli.doctor.chips import NoTPUError, find_chips
from tpudata.console.flags import height_width
from tpudata.console.loading import uncollected_loading
from tpudata.console.process import end_with
from tpudata.console.quiet import quiet_loading
from tpudata.console.tables import bytes_text, count_text
from tpudata.error_text.lines import first_line
from tpudata.errors import TpudataError
from tpudata.format import open_dataset

# Rows of the square matrices, and approximate duration of their multiplication in seconds.
_ROWS = {"CPU": 1024, "GPU": 4096}
_SECONDS = 0.5
# Seconds for which each stage of feeding is measured.
_FEEDING_SECONDS = 1


def devices() -> str:
    """Return a line on the CPU and GPUs that TensorFlow sees, with the speed of the first of each."""
    tf = _import_tensorflow()
    words = []
    for kind in ("CPU", "GPU"):
        logical_devices = tf.config.list_logical_devices(kind)
        if logical_devices:
            words.append(
                f"{count_text(len(logical_devices), kind)}: {_measure_speed(tf, kind, _bind_device(tf, logical_devices[0].name))}"
            )
    return ", ".join(words)


def tpu() -> str:
    """Return a line on the TPU chips of this machine, and their speed."""
    with quiet_loading(), uncollected_loading():
        return find_chips()


def credentials() -> str:
    """Return a line on the credentials that google-auth finds."""
    from google.auth.exceptions import DefaultCredentialsError

    from tpudata.storage.gcs.credentials import (
        ANONYMOUS,
        EMULATOR,
        IMPERSONATED,
        default_credentials,
        describe_key_file_fault,
        is_switched_on,
    )

    if os.environ.get(EMULATOR):
        return f"none needed: {EMULATOR} is {os.environ[EMULATOR]}"
    if is_switched_on(ANONYMOUS):
        return f"none used: {ANONYMOUS} is {os.environ[ANONYMOUS]}"
    # It notices a file that can be read and holds no key.
    if (fault := describe_key_file_fault()) is not None:
        raise DefaultCredentialsError(fault)  # type: ignore[no-untyped-call]
    default, project = default_credentials()
    account = getattr(default, "service_account_email", None) or type(default).__module__.rpartition(".")[2]
    if impersonated := os.environ.get(IMPERSONATED, "").strip():
        account = f"{impersonated.rpartition(',')[2].strip()}, impersonated by {account}"
    return f"{account}, project {project or 'not set'}"


def data(folder: str) -> str:
    """Return a line on the records of a dataset."""
    splits = open_dataset(folder).manifest.splits
    return ", ".join(f"{name} {count_text(split.records, 'record')}" for name, split in splits.items())


def memory(folder: str, split: str, image_size: str, crop: str, sequence_length: str) -> str:
    """Return the memory of the shuffle window and of a cache of decoded records, against the free memory.

    Raises:
        _SlowError: the window takes more than half of the free memory.
    """
    _import_tensorflow()
    from tpudata.input.dataset.select_fields import select_fields
    from tpudata.input.files.shards import open_shards
    from tpudata.input.graph.caches.choose_cache import choose_cache
    from tpudata.input.graph.reading.free_memory import free_memory
    from tpudata.input.graph.records import Records
    from tpudata.input.options.options import Options
    from tpudata.input.request import InputRequest

    dataset = open_dataset(folder)
    size = height_width(image_size) if image_size else None
    if crop and size is None:
        size = (int(crop), int(crop))
    fields = select_fields(
        dataset.manifest, image_size=size, sequence_length=int(sequence_length) if sequence_length else None
    )
    request = InputRequest(open_shards(dataset, split), fields, Options(training=True))
    records = Records.open(request)
    free = free_memory()
    kept_split = dataset.kept(split)
    decoded = kept_split.records * fields.record_bytes(kept_split)
    is_cached = not crop and choose_cache("auto", request, records.plan).is_in_memory
    window = records.window.bytes
    text = f"shuffle window {bytes_text(window)}, decoded records {bytes_text(decoded)}"
    text += " (kept by cache=auto)" if is_cached else " (not kept by cache=auto)"
    if free is None:
        return f"{text}; the free memory of this system is unknown"
    text = f"{text}, {bytes_text(free)} free"
    if 2 * window + (decoded if is_cached else 0) > free:
        raise _SlowError(f"{text}. Close other programs, or pass a smaller shuffle= to make_input_fn.")
    return text


def feeding(
    folder: str, split: str, batch_size: str, step_time: str, image_size: str, crop: str, sequence_length: str
) -> str:
    """Return the measured number of records per second, against a step time.

    Raises:
        _SlowError: the device would wait.
    """
    _import_tensorflow()
    from tpudata.cli.bench.command import measure
    from tpudata.cli.bench.flags import bench_flags

    words = [folder, f"--split={split}", f"--batch-size={batch_size}", f"--seconds={_FEEDING_SECONDS}"]
    optional = {"step-time": step_time, "image-size": image_size, "crop": crop, "sequence-length": sequence_length}
    words += [f"--{name}={value}" for name, value in optional.items() if value]
    report = measure(open_dataset(folder), bench_flags(words))
    rate = report["stages"][-1]["records_per_second"]
    text = f"{rate:,.0f} records/s in batches of {batch_size}"
    step = report["step"]
    if step is None:
        return f"{text}; pass --step-time MS to see whether that is enough"
    text += f", {step['records_per_second']:,.0f} needed for steps of {step['milliseconds']:g} ms"
    if step["is_input_bound"]:
        raise _SlowError(f"{text}: the device waits {step['waiting']:.0%} of the time. {report['advice']}")
    return text


class _SlowError(Exception):
    """A run would work, but waste time or memory."""


def _import_tensorflow() -> Any:
    with quiet_loading(), uncollected_loading():
        require_tensorflow("tpudata doctor")
        import tensorflow as tf
    return tf


def _bind_device(tf: Any, device: str) -> Callable[..., float]:
    def run(function: Any, *values: Any) -> float:
        with tf.device(device):
            return float(function(*values))

    return run


def _measure_speed(tf: Any, kind: str, run: Callable[..., float]) -> str:
    """Return the operations per second of a multiplication of matrices, in the device's best dtype."""
    rows = _ROWS[kind]
    dtype = tf.float32 if kind == "CPU" else tf.bfloat16

    @tf.function  # type: ignore[untyped-decorator]
    def multiply(times: Any) -> Any:
        matrix = tf.fill([rows, rows], tf.cast(1 / rows, dtype))
        product = tf.while_loop(lambda i, _: i < times, lambda i, x: (i + 1, tf.matmul(x, matrix)), (0, matrix))[1]
        return tf.reduce_sum(tf.cast(product, tf.float32))

    def seconds(times: int) -> float:
        started = time.monotonic()
        # Each row of the product of matrices whose values are all 1 / rows adds up to 1.
        if not abs(run(multiply, tf.constant(times)) / rows - 1) < 0.1:
            raise TpudataError(f"The {kind} multiplies matrices wrongly. Use another one.")
        return time.monotonic() - started

    seconds(1)  # traces
    times = max(1, min(10_000, round(_SECONDS / seconds(1))))
    rate = 2 * rows**3 * times / seconds(times)
    return f"{rate / 1e9:,.0f} GFLOP/s ({dtype.name})"


_KINDS: dict[str, Callable[..., str]] = {
    "devices": devices,
    "tpu": tpu,
    "credentials": credentials,
    "data": data,
    "memory": memory,
    "feeding": feeding,
}


def main(words: list[str]) -> None:
    """Run one probe, and print its answer on stdout."""
    try:
        # Keep the output of libraries out of the report.
        with contextlib.redirect_stdout(sys.stderr):
            answer = {"found": _KINDS[words[0]](*words[1:])}
    except _SlowError as error:
        answer = {"warning": str(error)}
    except NoTPUError as error:
        answer = {"none": str(error)}
    except Exception as error:
        answer = {"problem": first_line(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    main(sys.argv[2:])
