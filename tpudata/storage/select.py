"""Which storage serves a path."""

from __future__ import annotations

import functools
import os
import re

from tpudata.errors import StorageError
from tpudata.storage.interface import Storage
from tpudata.storage.local import LocalStorage

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_LOCAL = LocalStorage()


def storage_for(path: str) -> Storage:
    """The storage that serves a path.

    Raises:
        StorageError: the path names a scheme that nothing here serves.
    """
    match = _SCHEME.match(path) if "://" in path else None
    if match is None:
        if path == "gs:" or path.startswith("gs:/"):
            # What is left of gs:// where it was taken for a local path.
            raise StorageError(
                f"{path}: write gs://{path[4:] or 'BUCKET'} for Google Cloud Storage, ./{path} for a local file."
            )
        return _LOCAL
    if match[1] == "gs":
        return _google()
    raise StorageError(f"{path}: no storage for {match[1]}://; local paths and gs:// are read and written.")


def is_remote(path: str) -> bool:
    """Whether a path leads to an object store, where every request takes its time."""
    return "://" in path


@functools.cache
def _google() -> Storage:
    # Here, because its client takes half a second to load.
    from tpudata.storage.gcs import GcsStorage

    return GcsStorage()


if hasattr(os, "register_at_fork"):
    # Connections must not be shared with a forked child: two processes would read each other's answers.
    os.register_at_fork(after_in_child=_google.cache_clear)
