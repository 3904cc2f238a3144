"""Memory that this process may still use."""

from __future__ import annotations

import os
from pathlib import Path

# Share of the free memory that records may take: while they are concatenated, they are in memory twice.
MEMORY_SHARE = 0.4
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def measure_free_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the memory in bytes that this process may still use, or None if unknown.

    This is the smaller of the machine's available memory and the rest of the container's limit (cgroup version 2).

    Args:
        meminfo: file of the machine's memory.
        cgroup: folder of the container's limit.
    """
    limits = []
    try:
        sizes_by_name = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        # A size is text such as "123 kB".
        limits.append(int(sizes_by_name["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        # The file is missing, or has no such line: take the free pages, if the system counts them.
        names = os.sysconf_names
        if "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
            limits.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = int((cgroup / "memory.max").read_text())
        limits.append(max(0, limit - int((cgroup / "memory.current").read_text())))
    except (OSError, ValueError):
        pass  # No cgroup version 2 here, or "max": no limit.
    return min(limits, default=None)
