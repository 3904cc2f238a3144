"""Requests slow down while the store asks for fewer, and return to full speed afterwards.

Tests set the clock of a pace, or count requests of the client of every reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import WHOLE_FILE, Reference
from scripts.fake_gcs import FakeGcs, Fault
from tests.helpers.stores import serve_gs
from tpudata.errors import UsageError
from tpudata.storage import RequestLimits, held_request_limits, request_limits
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.gcs.pace import Pace
from tpudata.storage.gcs.transport import Transport
from tpudata.storage.objects.retries import RetryPolicy


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs() as server:
        for number in range(100):
            server.put("b", str(number), bytes([number]) * 10)
        yield server


def read_all(store: FakeGcs) -> None:
    objects = store.buckets["b"]
    references = [Reference(name, "train", (), f"gs://b/{name}", WHOLE_FILE, 10) for name in objects]
    assert [data for _, data in read_references(references)] == [one.data for one in objects.values()]


def test_limit_falls_once_per_round_and_grows_by_one_per_round() -> None:
    now = 0.0
    pace = Pace(lambda: 64, lambda: now)
    with pace.request() as first, pace.request() as second:
        now = 1.0
        pace.lower_limit(first, 0)
        assert pace.limit == 1
        pace.lower_limit(second, 0)
        assert pace.limit == 1
    for limit in range(1, 8):
        assert pace.limit == limit
        for _ in range(limit + 1):
            pace.raise_limit()
    for _ in range(5000):
        pace.raise_limit()
    assert pace.limit == 64


def test_keeps_requests_in_flight_within_the_limit() -> None:
    pace, most, now = Pace(lambda: 3), 0, 0
    lock = threading.Lock()

    def request() -> None:
        nonlocal most, now
        with pace.request():
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.005)
            with lock:
                now -= 1

    threads = [threading.Thread(target=request) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_sends_fewer_requests_after_answers_of_429(store: FakeGcs) -> None:
    # 64 readers, of whom the store serves 4 at a time: each round of 64 would be 60 answers 429.
    store.latency, store.capacity = 0.01, 4
    read_all(store)
    assert store.requests["rejected"] < 90
    store.requests.clear()
    store.most_in_flight = 0
    read_all(store)
    assert store.most_in_flight < 16
    assert store.requests["rejected"] < 60


@pytest.mark.parametrize("code", ["429", "503"])
def test_waits_as_long_as_retry_after_says(store: FakeGcs, code: str) -> None:
    store.retry_after = 0.2
    store.faults.add(Fault(code, "read", count=1))
    began = time.monotonic()
    # Without the header, it would wait 0.01 s at most.
    assert GcsStorage(RetryPolicy(first_wait=0.01)).read("gs://b/7") == bytes([7]) * 10
    assert time.monotonic() - began >= 0.2
    assert store.requests["read"] == 2


def test_an_outage_without_retry_after_does_not_change_the_pace(store: FakeGcs) -> None:
    transport = Transport()
    store.faults.add(Fault("503", "read", count=1))
    with pytest.raises(Exception, match="503"):
        transport.request("GET", "/download/storage/v1/b/b/o/1?alt=media")
    assert transport.pace.limit == 128
    store.faults.add(Fault("429", "read", count=1))
    with pytest.raises(Exception, match="429"):
        transport.request("GET", "/download/storage/v1/b/b/o/1?alt=media")
    assert transport.pace.limit == 1


def test_readers_keep_within_held_limits(store: FakeGcs) -> None:
    store.latency = 0.005
    with held_request_limits(RequestLimits(read_threads=3, retry_seconds=7)):
        read_all(store)
        assert Transport().policy.limit == 7
    assert store.most_in_flight <= 3


def test_an_existing_transport_follows_held_limits(store: FakeGcs) -> None:
    transport = Transport()
    assert transport.pace.limit == 128
    with held_request_limits(RequestLimits(read_threads=200)):
        assert transport.pace.limit == 400
    assert transport.pace.limit == 128


def test_contexts_of_limits_may_end_in_any_order() -> None:
    first, second, third = (held_request_limits(RequestLimits(read_threads=number)) for number in (3, 4, 3))
    for context in (first, second, third):
        context.__enter__()
    assert request_limits().read_threads == 3
    third.__exit__(None, None, None)
    assert request_limits().read_threads == 4
    first.__exit__(None, None, None)
    assert request_limits().read_threads == 4
    second.__exit__(None, None, None)
    assert request_limits() == RequestLimits()


def test_environment_variable_overrides_held_retry_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_request_limits(RequestLimits(retry_seconds=7)):
        monkeypatch.setenv("TPUDATA_GCS_RETRY", "limit=9,first_wait=0.1")
        assert (Transport().policy.limit, Transport().policy.first_wait) == (9, 0.1)
        monkeypatch.setenv("TPUDATA_GCS_RETRY", "first_wait=0.1")
        assert (Transport().policy.limit, Transport().policy.first_wait) == (7, 0.1)


@pytest.mark.parametrize("said", [{"read_threads": 0}, {"read_threads": 1025}, {"retry_seconds": 0}])
def test_rejects_limits_out_of_range(said: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(said)).replace('_', '-')}: out of range"):
        RequestLimits(**said)
