"""Liveness of the run that holds a claim. A run is dead

- on the same machine if its process is: a process is its id and its start time, since ids are reused;
- elsewhere if its claim stands still for a minute: a run of the local runner rewrites its claim every few seconds;
- as a job on another runner, which may outlive the process that started it, if its engine says so and the claim names the job. Its
  last step removes the claim;
- as `WriteTFRecordShards` on another machine: unknown. Its claim is removed when the job ends; until then a person decides.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from tpudata.errors import OutputError
from tpudata.storage import storage_for
from tpudata.storage.claims.claim import JOB, PIPELINE, PROCESS, Claim, claim_path, read_claim
from tpudata.storage.claims.process_identity import read_birth

# A run counts as dead if its claim stands still for so long, which includes delays of the store.
DEAD_AFTER_SECONDS = 60.0
_log = logging.getLogger("tpudata")
_LOOK_EVERY_SECONDS = 1.0
CONVERSION_FIX = "Wait until it has ended, or end it and run again with --resume, or pass another folder."


# Returns whether the job that a claim names has ended; None if unknown.
HasEnded = Callable[[Mapping[str, str]], bool | None]


def check_unclaimed(output: str, has_ended: HasEnded | None = None) -> None:
    """Raise OutputError if another run is, or may be, at work in an output folder; watches a claim for up to a minute.

    Args:
        output: the folder.
        has_ended: returns whether a claim's job has ended; None if no engine can be asked.
    """
    path = claim_path(output)
    check_dead(output, path, read_claim(path), has_ended)


def remove_dead_claim(output: str, has_ended: HasEnded | None = None) -> None:
    """Remove the claim of a run that was killed after it completed its dataset; arguments and errors as for `check_unclaimed`."""
    path = claim_path(output)
    content = read_claim(path)
    check_dead(output, path, content, has_ended)
    if content is not None:
        storage_for(output).swap(path, content, None)


def check_dead(
    output: str,
    path: str,
    content: bytes | None,
    has_ended: HasEnded | None,
    fix: str = CONVERSION_FIX,
    dead_after: float = DEAD_AFTER_SECONDS,
) -> None:
    """Raise OutputError unless the run of a claim is known to be dead."""
    if content is None:
        return
    claim = Claim.from_bytes(content)
    if claim is None:
        raise OutputError(
            f"{path}: not a claim that this version understands. If no run is at work in {output}, remove it and run again."
        )
    if claim.ends_with != JOB and claim.is_of_this_machine:
        is_own = claim.pid == os.getpid()
        # The claim of a failed pipeline of this process remains.
        is_dead = read_birth(claim.pid) != claim.birth or (is_own and claim.ends_with == PIPELINE)
    elif claim.ends_with == PROCESS:
        _log.warning(
            "%s: another run (%s) may be at work there; watching its claim for up to %g s.",
            output,
            claim,
            dead_after,
        )
        is_dead = _stands_still(path, content, dead_after)
    elif claim.job is not None and has_ended is not None and (ended := has_ended(claim.job)) is not None:
        is_dead = ended
    else:
        kind = "a job" if claim.ends_with == JOB else "a pipeline"
        raise OutputError(
            f"{output}: {kind} of another run ({claim}) has claimed it and may still be running. If it has ended,"
            f" remove {path} and run again with --resume."
        )
    if not is_dead:
        raise OutputError(f"{output}: another run is at work there ({claim}). {fix}")


def _stands_still(path: str, content: bytes, seconds: float) -> bool:
    """Watch a claim, and return whether it stood still for so many seconds that its run must be dead."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(_LOOK_EVERY_SECONDS, seconds))
        current = read_claim(path)
        if current != content:
            # Gone, or taken over by another run, which may be dead, too: the caller checks again.
            return current is None
    return True
