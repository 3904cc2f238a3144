"""Liveness of the run that holds a claim. What proves that a run is dead depends on its kind:

- a run of a process of this machine is dead if the process is; its id and its start time identify it, since ids are reused;
- a run of a process of another machine, or without a start time in its claim, is dead if the claim stands still for a minute: it
  rewrites the claim every few seconds;
- a job on another runner, which may outlive the process that started it, is dead if the claim names the job and its runner says
  that it has ended. Its last step removes the claim;
- a pipeline with `WriteTFRecordShards` on another machine may be dead or not: only a person can decide this. The claim is removed
  when the pipeline ends.
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

# A run counts as dead if its claim stands still for this time, which allows for delays of the store.
DEAD_AFTER_SECONDS = 60.0
_log = logging.getLogger("tpudata")
_LOOK_EVERY_SECONDS = 1.0
CONVERSION_FIX = "Wait until it has ended, or end it and run again with --resume, or pass another folder."


# Returns whether the job that a claim names has ended; None if unknown.
HasEnded = Callable[[Mapping[str, str]], bool | None]


def check_unclaimed(output: str, has_ended: HasEnded | None = None) -> None:
    """Raise OutputError if another run is, or may be, at work in an output folder. May watch a claim for up to a minute.

    Args:
        output: the folder.
        has_ended: returns whether a claim's job has ended; None if no runner can be asked.
    """
    check_dead(output, read_claim(claim_path(output)), has_ended)


def remove_dead_claim(output: str, has_ended: HasEnded | None = None) -> None:
    """Remove the claim of a run that was killed after it completed its dataset; OutputError if the run may be at work.

    Args:
        output: the folder.
        has_ended: returns whether a claim's job has ended; None if no runner can be asked.
    """
    path = claim_path(output)
    content = read_claim(path)
    check_dead(output, content, has_ended)
    if content is not None:
        storage_for(output).swap(path, content, new=None)


def check_dead(
    output: str,
    content: bytes | None,
    has_ended: HasEnded | None,
    fix: str = CONVERSION_FIX,
    dead_after: float = DEAD_AFTER_SECONDS,
) -> None:
    """Raise OutputError unless the run that holds a claim is known to be dead.

    Args:
        output: the folder.
        content: content of the claim's file; None if there is no claim, which is no error.
        has_ended: returns whether a claim's job has ended; None if no runner can be asked.
        fix: advice in the error if the run is alive.
        dead_after: seconds for which the claim of a process of another machine, or of unknown start time, is watched, and must
            stand still for its run to count as dead.
    """
    if content is None:
        return
    path = claim_path(output)
    claim = Claim.from_bytes(content)
    if claim is None:
        raise OutputError(
            f"{path}: not a claim that this version understands. If no run is at work in {output}, remove it and run again."
        )
    is_own_pipeline = claim.is_of_this_machine and claim.pid == os.getpid() and claim.ends_with == PIPELINE
    # Without its start time, a running process cannot be distinguished from a later one with the same id.
    if claim.ends_with != JOB and claim.is_of_this_machine and (claim.birth or is_own_pipeline):
        # A pipeline of this process that failed may have left its claim. Otherwise the process is dead if no process has its id,
        # or a process that began at another time has it.
        is_dead = is_own_pipeline or read_birth(claim.pid) != claim.birth
    elif claim.ends_with == PROCESS:
        _log.warning(
            "%s: another run (%s) may be at work there; watching its claim for up to %g s.",
            output,
            claim,
            dead_after,
        )
        is_dead = _stands_still(path, content, dead_after)
    elif claim.job is not None and has_ended is not None and (job_has_ended := has_ended(claim.job)) is not None:
        is_dead = job_has_ended
    else:
        kind = "a job" if claim.ends_with == JOB else "a pipeline"
        raise OutputError(
            f"{output}: {kind} of another run ({claim}) has claimed it and may still be running. If it has ended,"
            f" remove {path} and run again with --resume."
        )
    if not is_dead:
        raise OutputError(f"{output}: another run is at work there ({claim}). {fix}")


def _stands_still(path: str, content: bytes, seconds: float) -> bool:
    """Watch a claim for some seconds; return whether it stood still or was removed, False if it was rewritten."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(_LOOK_EVERY_SECONDS, seconds))
        current = read_claim(path)
        if current != content:
            return current is None
    return True
