"""The fake Google Cloud Storage that gs:// paths of a test lead to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.fake_gcs import FakeGcs
from tpudata.storage.select import _make_storage


@contextlib.contextmanager
def serve_gs(bucket: str = "b", **options: Any) -> Iterator[FakeGcs]:
    """Serve gs:// paths in this process and those that it starts.

    Args:
        bucket: an empty bucket.
        **options: keywords of FakeGcs.

    Yields:
        the store.
    """
    with FakeGcs(**options) as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", store.url)
        store.bucket(bucket)
        # A storage lives as long as its process, and the one before has another server.
        _make_storage.cache_clear()
        try:
            yield store
        finally:
            _make_storage.cache_clear()
