"""Selection of a path's storage by its scheme, from the table below or from a package that registers one."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from types import MappingProxyType

from tpudata.entry_points import load_entry_point
from tpudata.errors import StorageError, UsageError
from tpudata.storage.interface import Storage
from tpudata.storage.local.local_storage import LocalStorage

# By scheme, "MODULE:NAME" of a function without arguments that returns its Storage: clients take half a second to load.
STORAGES: Mapping[str, str] = MappingProxyType(
    {
        "file": "tpudata.storage.local.file_urls:FileUrls",
        "gs": "tpudata.storage.gcs:GcsStorage",
    }
)
# Installed packages add to the table by entry points of this group.
ENTRY_POINTS = "tpudata.storages"
_MEMBER_NAMES = sorted(name for name in vars(Storage) if not name.startswith("_"))

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_LOCAL = LocalStorage()


def storage_for(path: str) -> Storage:
    """Return the storage of a path; a path without `://` is local.

    Raises:
        MissingExtraError: the storage's client, or fsspec for a scheme that may be fsspec's, is not installed.
        StorageError: no storage serves the path's scheme, fsspec's package for it is not installed, or `gs:` has no `//` after it.
        UsageError: a package registers a storage for the scheme that cannot be loaded or lacks members of `Storage`.
    """
    match = _SCHEME.match(path) if "://" in path else None
    if match is None:
        if path == "gs:" or path.startswith("gs:/"):
            # This is a gs:// path that was normalized as a local path.
            raise StorageError(
                f"{path}: ambiguous path. Pass gs://{path[4:] or 'BUCKET'} for Google Cloud Storage, ./{path} for a local file."
            )
        return _LOCAL
    storage = _make_storage(match[1])
    if storage is None:
        raise StorageError(
            f"{path}: no storage for {match[1]}:// (expected a local path, gs://, s3:// or another of fsspec). Check the path."
        )
    return storage


def is_remote(path: str) -> bool:
    """Return whether a path is on an object store, where every request has latency."""
    return "://" in path and not path.startswith("file://")


@functools.cache
def _make_storage(scheme: str) -> Storage | None:
    """Return the storage for a scheme, one in each process; None if no package has one.

    Raises:
        MissingExtraError: the storage's client, or fsspec for a scheme that may be fsspec's, is not installed.
        StorageError: fsspec's package for the scheme is not installed.
        UsageError: a package registers a storage for the scheme that cannot be loaded or lacks members of `Storage`.
    """
    if scheme in STORAGES:
        module, _, name = STORAGES[scheme].partition(":")
        return getattr(importlib.import_module(module), name)()  # type: ignore[no-any-return]
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=scheme):
        storage_or_factory = load_entry_point(point)
        storage = storage_or_factory() if callable(storage_or_factory) else storage_or_factory
        missing_members = [name for name in _MEMBER_NAMES if not hasattr(storage, name)]
        if missing_members:
            raise UsageError(
                f"{scheme}://: the storage of {point.value} lacks members of tpudata.storage.Storage (got {type(storage).__name__}"
                f" without {', '.join(missing_members)}). Change its package."
            )
        return storage  # type: ignore[no-any-return]
    from tpudata.storage.fsspec_storage import FsspecStorage, is_fsspec_scheme

    return FsspecStorage(scheme) if is_fsspec_scheme(scheme) else None


if hasattr(os, "register_at_fork"):
    # Connections must not be shared with a forked child: two processes would read each other's answers.
    os.register_at_fork(after_in_child=_make_storage.cache_clear)
