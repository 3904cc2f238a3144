"""Probes of `tpudata doctor` that run in a separate process, which has a time limit.

    python -m tpudata.cli.doctor.probe LIFELINE KIND [WORD ...]

This process ends with the process that holds the writing end of a pipe; LIFELINE is the descriptor of the pipe's reading end.
It prints one line of JSON:
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
from tpudata.cli.doctor.chips import NoTPUError, describe_chips
from tpudata.console.flags import height_width
from tpudata.console.loading import loading_without_gc
from tpudata.console.process import end_with_parent
from tpudata.console.quiet import quiet_loading
from tpudata.console.tables import bytes_text, count_text
from tpudata.error_text.lines import first_line
from tpudata.errors import TpudataError
from tpudata.format import open_dataset

# Rows of the square matrices by device, approximate seconds of a measurement, and the maximum number of multiplications in it.
_ROW_COUNTS = {"CPU": 1024, "GPU": 4096}
_SECONDS = 0.5
_MAX_PRODUCTS = 10_000
# Seconds for which each stage of feeding is measured.
_FEEDING_SECONDS = 1


def describe_devices() -> str:
    """Return a line on the CPU and GPUs that TensorFlow sees, with the speed of the first of each."""
    tf = _import_tensorflow()
    parts = []
    for kind in ("CPU", "GPU"):
        logical_devices = tf.config.list_logical_devices(kind)
        if logical_devices:
            speed = _measure_speed(tf, kind, logical_devices[0].name)
            parts.append(f"{count_text(len(logical_devices), kind)}: {speed}")
    return ", ".join(parts)


def describe_tpu() -> str:
    """Return a line on the TPU chips of this machine, and their speed; NoTPUError without chips."""
    # `describe_chips` imports jax; the probe ends after it, so the garbage collector may stay off for all of it.
    with quiet_loading(), loading_without_gc():
        return describe_chips()


def describe_credentials() -> str:
    """Return a line on the credentials that google-auth finds; DefaultCredentialsError if there are none, or invalid ones."""
    from google.auth.exceptions import DefaultCredentialsError

    from tpudata.storage.gcs.credentials import (
        ANONYMOUS,
        EMULATOR,
        IMPERSONATED,
        describe_key_file_fault,
        is_switched_on,
        load_default_credentials,
    )

    if os.environ.get(EMULATOR):
        return f"none needed: {EMULATOR} is {os.environ[EMULATOR]}"
    if is_switched_on(ANONYMOUS):
        return f"none used: {ANONYMOUS} is {os.environ[ANONYMOUS]}"
    # Loading does not notice every fault, such as a readable file without a key.
    if (fault := describe_key_file_fault()) is not None:
        raise DefaultCredentialsError(fault)  # type: ignore[no-untyped-call]
    credentials, project = load_default_credentials()
    # Credentials of a person have no e-mail address; their module says their kind.
    account = getattr(credentials, "service_account_email", None) or type(credentials).__module__.rpartition(".")[2]
    if impersonated := os.environ.get(IMPERSONATED, "").strip():
        # The last of several accounts is the impersonated one; the accounts before it are its delegates.
        account = f"{impersonated.rpartition(',')[2].strip()}, impersonated by {account}"
    return f"{account}, project {project or 'not set'}"


def describe_data(folder: str) -> str:
    """Return a line on the records of a dataset."""
    splits = open_dataset(folder).manifest.splits
    return ", ".join(f"{name} {count_text(split.records, 'record')}" for name, split in splits.items())


def estimate_memory(folder: str, split: str, image_size: str, crop: str, sequence_length: str) -> str:
    """Return a line on the memory of the shuffle window and of a cache of decoded records, and on the free memory.

    The arguments are words of the probe's command line, numbers included.

    Args:
        folder: folder of the dataset.
        split: name of the split that is fed.
        image_size: HEIGHTxWIDTH, or empty.
        crop: side of a crop in pixels, or empty.
        sequence_length: tokens of a sequence, or empty.

    Raises:
        _SlowError: the window takes more than half of the memory that is free after the records that cache=auto keeps.
    """
    _import_tensorflow()
    from tpudata.input.dataset.select_fields import select_fields
    from tpudata.input.files.shards import open_shards
    from tpudata.input.graph.caches.choose_cache import choose_cache
    from tpudata.input.graph.reading.free_memory import measure_free_memory
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
    free_bytes = measure_free_memory()
    decoded_bytes = records.plan.split.records * fields.estimate_record_bytes(records.plan.sizes.mean)
    # With a crop, a cache keeps encoded images.
    is_cached = not crop and choose_cache("auto", request, records.plan).is_in_memory
    window_bytes = records.window.bytes
    text = f"shuffle window {bytes_text(window_bytes)}, decoded records {bytes_text(decoded_bytes)}"
    text += " (kept by cache=auto)" if is_cached else " (not kept by cache=auto)"
    if free_bytes is None:
        return f"{text}; the free memory of this system is unknown"
    text = f"{text}, {bytes_text(free_bytes)} free"
    if 2 * window_bytes + (decoded_bytes if is_cached else 0) > free_bytes:
        raise _SlowError(f"{text}. Close other programs, or pass a smaller shuffle= to make_input_fn.")
    return text


def measure_feeding(
    folder: str, split: str, batch_size: str, step_time: str, image_size: str, crop: str, sequence_length: str
) -> str:
    """Return a line on the measured records per second, and on the records per second that a step time needs.

    The arguments are words of the probe's command line, numbers included.

    Args:
        folder: folder of the dataset.
        split: name of the split that is fed.
        batch_size: records in a batch.
        step_time: milliseconds of a step, or empty.
        image_size: HEIGHTxWIDTH, or empty.
        crop: side of a crop in pixels, or empty.
        sequence_length: tokens of a sequence, or empty.

    Raises:
        _SlowError: the device would wait.
    """
    _import_tensorflow()
    from tpudata.cli.bench.command import measure
    from tpudata.cli.bench.flags import parse_bench_flags

    words = [folder, f"--split={split}", f"--batch-size={batch_size}", f"--seconds={_FEEDING_SECONDS}"]
    settings = {"step-time": step_time, "image-size": image_size, "crop": crop, "sequence-length": sequence_length}
    words += [f"--{name}={value}" for name, value in settings.items() if value]
    report = measure(open_dataset(folder), parse_bench_flags(words))
    # The last stage is the whole input_fn.
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
    """Return the module tensorflow, imported without informational lines and, for speed, without garbage collection.

    Raises:
        MissingExtraError: it is not installed.
    """
    with quiet_loading(), loading_without_gc():
        require_tensorflow("tpudata doctor")
        import tensorflow as tf
    return tf


def _measure_speed(tf: Any, kind: str, device: str) -> str:
    """Return a phrase with the floating-point operations per second of a device that multiplies matrices.

    Args:
        tf: the module `tensorflow`.
        kind: "CPU", which multiplies float32, or "GPU", which multiplies bfloat16.
        device: name of the device.

    Raises:
        TpudataError: a product is wrong.
    """
    row_count = _ROW_COUNTS[kind]
    dtype = tf.float32 if kind == "CPU" else tf.bfloat16

    @tf.function  # type: ignore[untyped-decorator]
    def multiply(product_count: Any) -> Any:
        """Multiply a matrix by itself, once for each product, and return the sum of the last product's values."""
        matrix = tf.fill([row_count, row_count], tf.cast(1 / row_count, dtype))
        _, product = tf.while_loop(
            lambda i, _: i < product_count, lambda i, product: (i + 1, tf.matmul(product, matrix)), (0, matrix)
        )
        return tf.reduce_sum(tf.cast(product, tf.float32))

    def measure_seconds(product_count: int) -> float:
        """Return the number of seconds in which the device computes the products; TpudataError if a product is wrong."""
        started = time.monotonic()
        with tf.device(device):
            total = float(multiply(tf.constant(product_count)))
        # Each row of the product of matrices whose values are all 1 / row_count adds up to 1. `not <` is also true for NaN.
        if not abs(total / row_count - 1) < 0.1:
            raise TpudataError(f"The {kind} multiplies matrices wrongly. Use another one.")
        return time.monotonic() - started

    measure_seconds(1)  # The first call traces.
    product_count = max(1, min(_MAX_PRODUCTS, round(_SECONDS / measure_seconds(1))))
    # Each value of a product takes `row_count` multiplications and as many additions.
    rate = 2 * row_count**3 * product_count / measure_seconds(product_count)
    return f"{rate / 1e9:,.0f} GFLOP/s ({dtype.name})"


_PROBES: dict[str, Callable[..., str]] = {
    "devices": describe_devices,
    "tpu": describe_tpu,
    "credentials": describe_credentials,
    "data": describe_data,
    "memory": estimate_memory,
    "feeding": measure_feeding,
}


def main(words: list[str]) -> None:
    """Run a probe, and print its answer on stdout: one line of JSON, see the module's docstring.

    Args:
        words: kind of the probe, and its arguments.
    """
    try:
        # Keep the output of libraries out of the report.
        with contextlib.redirect_stdout(sys.stderr):
            answer = {"found": _PROBES[words[0]](*words[1:])}
    except _SlowError as error:
        answer = {"warning": str(error)}
    except NoTPUError as error:
        answer = {"none": str(error)}
    except Exception as error:
        answer = {"problem": first_line(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    main(sys.argv[2:])
