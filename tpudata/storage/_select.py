"""Which storage serves a path."""

from __future__ import annotations

import re

from tpudata.errors import StorageError
from tpudata.storage._interface import Storage
from tpudata.storage.local import LocalStorage

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_LOCAL = LocalStorage()


def storage_for(path: str) -> Storage:
    """The storage that serves a path.

    Raises:
        StorageError: the path names a scheme that nothing here serves.
    """
    match = _SCHEME.match(path)
    if match is None:
        return _LOCAL
    raise StorageError(f"{path}: no storage for {match[1]}://; this version reads and writes local paths.")
