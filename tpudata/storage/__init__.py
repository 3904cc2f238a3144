"""Files behind one small interface, wherever they are: list, read, ranged read, atomic write.

Every path is a full path in the storage's own notation. `storage_for(path)` picks the storage by the path.
"""

from tpudata.storage._for_each import for_each
from tpudata.storage._glob import expand, expand_below, is_pattern, split_pattern
from tpudata.storage._interface import Entry, Storage
from tpudata.storage._select import is_remote, storage_for
from tpudata.storage.local import LocalStorage

__all__ = [
    "Entry",
    "LocalStorage",
    "Storage",
    "expand",
    "expand_below",
    "for_each",
    "is_pattern",
    "is_remote",
    "split_pattern",
    "storage_for",
]
