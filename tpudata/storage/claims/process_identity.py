"""Identity of a process on this machine: its id and its start time, since ids are reused."""

from __future__ import annotations

import functools
import os
import subprocess
import uuid
from pathlib import Path

# A zombie, which has ended but was not waited for, and a dead process.
_DEAD_STATES = ("Z", "X")
# The start time is field 22 of /proc/PID/stat, counted from 1; the fields that `read_birth` counts from 0 begin with field 4.
_START_TIME_INDEX = 22 - 4


@functools.cache
def identify_machine() -> str:
    """Return an identity of this machine, since its boot, and of its container: host names may be equal."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        # A system without /proc: the address of its network card.
        return f"{uuid.getnode():012x}"


def read_birth(pid: int) -> str | None:
    """Return the start time of a process of this machine, in the system's own unit; None if no process with this id runs."""
    try:
        # The name before the state may contain any character.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in _DEAD_STATES else fields[_START_TIME_INDEX]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    # This system has no /proc.
    return read_birth_by_ps(pid)


def read_birth_by_ps(pid: int) -> str | None:
    """Return the start time of a process as `read_birth` does, on systems without /proc."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    # So the output is the same in any locale and time zone.
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    state, _, birth = output.strip().partition(" ")
    return birth.strip() if birth and state[:1] not in _DEAD_STATES else None
