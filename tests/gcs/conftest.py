"""A store on loopback, emptied for each test, and one process for all tests that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.fake_gcs import FakeGcs, proxied_environment
from tests.gcs.child import Child


@pytest.fixture(scope="session")
def shared_store() -> Iterator[FakeGcs]:
    with FakeGcs() as store:
        yield store


@pytest.fixture
def store(shared_store: FakeGcs) -> FakeGcs:
    """The store with one empty bucket, data, and without faults."""
    shared_store.buckets.clear()
    shared_store.bucket("data")
    shared_store.uploads.clear()
    for limited in (shared_store.denied, shared_store.retained, shared_store.requester_pays):
        limited.clear()
    shared_store.needs_token = False
    shared_store.renew_tokens()
    shared_store.latency, shared_store.bandwidth = 0.0, None
    shared_store.packs, shared_store.hides_hashes = True, False
    shared_store.faults.clear()
    shared_store.faults.met = 0
    shared_store.requests.clear()
    return shared_store


@pytest.fixture(scope="session")
def proxied(shared_store: FakeGcs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables that lead whoever asks Google to the store, with credentials."""
    return proxied_environment(shared_store, Path(tmp_path_factory.mktemp("account")))


@pytest.fixture
def as_google(store: FakeGcs, proxied: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    """The store in place of Google's for this process; requests require a token."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for name, value in proxied.items():
        monkeypatch.setenv(name, value)
    store.needs_token = True
    return store


@pytest.fixture(scope="session")
def child(proxied: dict[str, str]) -> Iterator[Child]:
    """A process for which the store is Google's."""
    child = Child(proxied)
    yield child
    child.close()
