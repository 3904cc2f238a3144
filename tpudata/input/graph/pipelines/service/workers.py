"""Waiting for the workers of a tf.data service, which never start at the same moment."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import tensorflow as tf

from tpudata.errors import ServiceError
from tpudata.format.example.wire import iterate_fields
from tpudata.input.dataset_ops import iterate_numpy
from tpudata.input.graph.pipelines.service.receive_stream import (
    NUM_PARTS,
    SILENT,
    distribute_to_workers,
    limit_waits,
    list_parts,
)
from tpudata.input.options.service import DataService

_log = logging.getLogger("tpudata")
_METHOD = "/tensorflow.data.DispatcherService/GetWorkers"
# Pause between two checks of the service.
_TRY_SECONDS = 0.5
# Time in which the dispatcher, and each worker, must answer.
_CALL_SECONDS = 5.0
# Time to wait without a message: machines that are started together need no warning.
_QUIET_SECONDS = 2.0
# Number of workers that a message names.
_MAX_NAMES = 8


def wait_for_workers(service: DataService) -> None:
    """Wait until all workers of the dispatcher's list have registered and answer.

    The service gives no data for a worker that registers later.

    Raises:
        ServiceError: the dispatcher or a worker did not answer, or a worker did not register, in time.
    """
    start_seconds = time.monotonic()
    timeout_seconds = service.timeout_seconds
    has_logged = False
    while (missing := _describe_missing(service)) is not None:
        waited_seconds = time.monotonic() - start_seconds
        status = f"tf.data service at {service.address}: {missing}"
        if waited_seconds >= timeout_seconds:
            raise ServiceError(
                f"{status}, after {timeout_seconds:g} s (DataService's timeout_seconds). Start what is missing, and check the "
                "address."
            )
        if waited_seconds >= min(_QUIET_SECONDS, timeout_seconds / 2) and not has_logged:
            has_logged = True
            _log.warning("%s; waiting, for %g s at most (DataService's timeout_seconds).", status, timeout_seconds)
        time.sleep(min(_TRY_SECONDS, timeout_seconds - waited_seconds))
    if has_logged:
        # This is a warning, too, so that whoever saw the first one sees that the wait is over.
        _log.warning("tf.data service at %s: all workers have registered.", service.address)


def _describe_missing(service: DataService) -> str | None:
    """Describe what is missing of the service; None if all workers answer, or if TensorFlow reports the problem."""
    registered = _list_registered(service.address)
    if registered is None:
        return "the dispatcher does not answer"
    if not registered:
        return "no worker has registered"
    more = " and more" if len(registered) > _MAX_NAMES else ""
    names = f"registered: {', '.join(registered[:_MAX_NAMES])}{more}"
    parts_of_workers = _list_parts_of_workers(service, _CALL_SECONDS)
    if parts_of_workers is None:
        return f"a worker does not answer ({names})"
    # All parts: every worker has registered. No parts: the call failed, for example since the dispatcher has no worker_addresses;
    # TensorFlow's own error follows.
    if len(parts_of_workers) in (0, NUM_PARTS):
        return None
    # Worker w of the n in the dispatcher's worker_addresses has the parts w, w + n, w + 2 n, ..., about NUM_PARTS / n of them. So n
    # follows from the number of registered workers and the number of their parts.
    num_listed = round(NUM_PARTS * len(registered) / len(parts_of_workers))
    missing = sorted({*range(num_listed)} - {part % num_listed for part in parts_of_workers})
    # If a worker registered between the two requests, the numbers may not show which one is missing.
    numbers = ", ".join(map(str, missing[:_MAX_NAMES]))
    workers = f"worker {numbers} (counted from 0)" if missing else "a worker"
    return f"{workers} of the {num_listed} in the dispatcher's worker_addresses has not registered ({names})"


def _list_parts_of_workers(service: DataService, seconds: float) -> Sequence[int] | None:
    """Return the part numbers of all workers, see `list_parts`; None if one does not answer in time, () after an error."""
    parts: Sequence[int] | None = None

    def ask_workers() -> None:
        """Set `parts` to the result."""
        nonlocal parts
        try:
            answers = iterate_numpy(lambda: limit_waits(distribute_to_workers(service, list_parts()), seconds, SILENT))
            parts = [int(part) for part in answers]
        except tf.errors.OpError as error:
            parts = None if SILENT in error.message else ()

    # In another thread, so that this one handles signals, such as Ctrl-C, while it waits.
    thread = threading.Thread(target=ask_workers, name="tpudata-service", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    return parts


def _list_registered(address: str) -> list[str] | None:
    """Return the addresses of the workers that have registered; None if the call fails or times out."""
    import grpc  # TensorFlow depends on it.

    with grpc.insecure_channel(address.removeprefix("grpc://")) as channel:
        call = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            response: bytes = call(b"", timeout=_CALL_SECONDS)
        except grpc.RpcError:
            return None
    # GetWorkersResponse has a message of each worker in field 1, whose field 1 is the address.
    # The service is private: TensorFlow 2.20 and 2.21 have it, and tests/input/test_service.py fails if it changes.
    return [
        response[address_begin:address_end].decode()
        for outer_number, _, begin, end in iterate_fields(memoryview(response))
        if outer_number == 1
        for inner_number, _, address_begin, address_end in iterate_fields(memoryview(response), begin, end)
        if inner_number == 1
    ]
