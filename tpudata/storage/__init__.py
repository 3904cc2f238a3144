"""One interface to local and remote files: list, read, ranged read, atomic write.

Every path is a full path in the notation of its storage. `storage_for(path)` returns the storage of a path.
"""

from tpudata.storage.for_each import for_each
from tpudata.storage.glob import expand, expand_below, is_pattern, matches, matching_names, split_pattern
from tpudata.storage.interface import Entry, Storage
from tpudata.storage.limits import RequestLimits, held_request_limits, request_limits
from tpudata.storage.local.local_storage import LocalStorage
from tpudata.storage.ranges import Range, files_below, folder_ranges, lazy_entries
from tpudata.storage.select import is_remote, storage_for

__all__ = [
    "Entry",
    "LocalStorage",
    "Range",
    "RequestLimits",
    "Storage",
    "expand",
    "expand_below",
    "files_below",
    "folder_ranges",
    "for_each",
    "held_request_limits",
    "is_pattern",
    "is_remote",
    "lazy_entries",
    "matches",
    "matching_names",
    "request_limits",
    "split_pattern",
    "storage_for",
]
