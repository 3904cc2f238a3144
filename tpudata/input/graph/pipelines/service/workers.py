"""Waiting for the workers of a tf.data service, which never start at the same moment."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import tensorflow as tf

from tpudata.errors import ServiceError
from tpudata.format.example.wire import fields
from tpudata.input.dataset_ops import numpy_elements
from tpudata.input.graph.pipelines.service.receive_stream import MOST_WORKERS, SILENT, from_workers, limit_waits, places
from tpudata.input.options.service import DataService

_log = logging.getLogger("tpudata")
_METHOD = "/tensorflow.data.DispatcherService/GetWorkers"
_TRY_SECONDS = 0.5
_CALL_SECONDS = 5.0
# Machines that are started together are there without a message.
_QUIET_SECONDS = 2.0


def wait_for_workers(service: DataService) -> None:
    """Wait until all workers of the dispatcher's list have registered and answer.

    The parts of those that are not there yet would be empty.

    Raises:
        ServiceError: they were not there in time.
    """
    started, limit, has_told = time.monotonic(), service.timeout_seconds, False
    while (lack := _find_missing(service)) is not None:
        waited = time.monotonic() - started
        where = f"tf.data service at {service.address}: {lack}"
        if waited >= limit:
            raise ServiceError(
                f"{where}, after {limit:g} s (DataService's timeout_seconds). Start what is missing, and check the address."
            )
        if waited >= min(_QUIET_SECONDS, limit / 2) and not has_told:
            has_told = True
            _log.warning("%s; waiting, for %g s at most (DataService's timeout_seconds).", where, limit)
        time.sleep(min(_TRY_SECONDS, max(0.0, limit - waited)))
    if has_told:
        _log.warning("tf.data service at %s: all workers have registered.", service.address)


def _find_missing(service: DataService) -> str | None:
    """Return what is still missing, in words; None if everything is there."""
    registered = _list_registered(service.address)
    if registered is None:
        return "the dispatcher does not answer"
    if not registered:
        return "no worker has registered"
    names = f"registered: {', '.join(registered[:8])}{' and more' if len(registered) > 8 else ''}"
    places_of_workers = _ask_for_places(service, _CALL_SECONDS)
    if places_of_workers is None:
        return f"a worker does not answer ({names})"
    if len(places_of_workers) in (0, MOST_WORKERS):  # TensorFlow has an error for a dispatcher without a list.
        return None
    # Each worker has as many of the places as any other.
    listed_workers = round(MOST_WORKERS * len(registered) / len(places_of_workers))
    missing = sorted({*range(listed_workers)} - {place % listed_workers for place in places_of_workers})
    numbers = ", ".join(map(str, missing[:8])) or "one"
    return f"worker {numbers} of {listed_workers} in the dispatcher's worker_addresses, from 0, has not registered ({names})"


def _ask_for_places(service: DataService, seconds: float) -> Sequence[int] | None:
    """Return the places that the workers have; None if one gives no answer for some seconds, and none in case of an error."""
    answer: list[Sequence[int] | None] = [None]

    def ask() -> None:
        try:
            answer[0] = [
                int(item)
                for item in numpy_elements(lambda: limit_waits(from_workers(service, places()), seconds, SILENT))
            ]
        except tf.errors.OpError as error:
            answer[0] = None if SILENT in error.message else ()

    # Python handles signals while this thread waits.
    thread = threading.Thread(target=ask, name="tpudata-service", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    return answer[0]


def _list_registered(address: str) -> list[str] | None:
    """Return the addresses of the workers that have registered; None if the dispatcher does not answer."""
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
        response[start:stop].decode()
        for number, _, begin, end in fields(memoryview(response))
        if number == 1
        for part, _, start, stop in fields(memoryview(response), begin, end)
        if part == 1
    ]
