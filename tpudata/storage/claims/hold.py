"""Taking, holding and removing the claim of a run.

A run checks its claim before each shard and before the manifest is written. If another run has taken the claim over, because the
claim stood still for too long, the run ends with an error and completes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tpudata.errors import OutputError, StorageError
from tpudata.storage import is_remote, storage_for
from tpudata.storage.claims.claim import PIPELINE, PROCESS, Claim, claim_path, find_claim, parse_claim, read_claim
from tpudata.storage.claims.liveness import CONVERSION_FIX, DEAD_AFTER_SECONDS, HasEnded, check_dead
from tpudata.storage.local.errors import translate_errors
from tpudata.storage.local.file_urls import local_path

# Seconds between two renewals of a claim: six of them in the time after which a claim that stands still counts as dead.
BEAT_SECONDS = 10.0
# Maximum number of attempts to change a claim that others change at the same moment.
_MAX_TRIES = 100


def take_claim(
    output: str,
    claim: Claim,
    has_ended: HasEnded | None = None,
    *,
    fix: str = CONVERSION_FIX,
    dead_after: float = DEAD_AFTER_SECONDS,
) -> None:
    """Claim an output folder for a run, unless the run holds it already.

    Args:
        output: the folder.
        claim: claim of the run.
        has_ended: returns whether a claim's job has ended; None if no runner can be asked.
        fix: advice in the error if another run is at work there.
        dead_after: seconds for which a claim of another machine must stand still for its run to count as dead.

    Raises:
        OutputError: another run is or may be at work there, this version does not understand its claim, or other runs were first
            at each of 100 tries.
        StorageError: the claim cannot be read or written.
    """
    path, storage = claim_path(output), storage_for(output)
    for _ in range(_MAX_TRIES):
        content = read_claim(path)
        holder = parse_claim(content)
        if holder is not None and holder.run == claim.run:
            return
        check_dead(output, content, has_ended, fix, dead_after)
        if storage.swap(path, content, claim.to_bytes()):
            return
        # Another run was first, or has just ended: try again.
        time.sleep(random.uniform(0, 0.1))
    raise OutputError(f"{output}: other runs keep claiming it. Run one at a time, or name another folder.")


def name_job(output: str, claim: Claim, job: Mapping[str, str]) -> None:
    """Write the identity of a run's job into its claim; do nothing if the job has already ended and removed the claim."""
    _change_claim(output, claim, lambda held_claim: dataclasses.replace(held_claim, job=dict(job)).to_bytes())


def drop_claim(output: str, claim: Claim) -> None:
    """Remove the claim of a run, if the run still holds it."""
    _change_claim(output, claim, lambda _: None)


def _change_claim(output: str, claim: Claim, change: Callable[[Claim], bytes | None]) -> None:
    """Replace or remove the claim of a run, if the run still holds it; give up if the claim changes at each of 100 tries.

    Args:
        output: the folder.
        claim: claim of the run.
        change: returns the new content for the claim as stored; None to remove it.
    """
    path = claim_path(output)
    for _ in range(_MAX_TRIES):
        content = read_claim(path)
        holder = parse_claim(content)
        if holder is None or holder.run != claim.run:
            return
        if storage_for(output).swap(path, content, change(holder)):
            return
        # The run has just renewed its claim: try again with the new content, without a wait.


def drop_pipeline_claim(output: str, claim: Claim | None) -> None:
    """Remove the claim of a pipeline after a step failed for good: the last step, which removes the claim, will not run.

    Does nothing if the claim is None or not a pipeline's.
    """
    if claim is not None and claim.ends_with == PIPELINE:
        drop_claim(output, claim)


def check_not_taken_over(output: str) -> None:
    """Raise OutputError if another process has taken over a folder; a folder without a claim is not an error."""
    holder = find_claim(output)
    if holder is not None and not (holder.is_of_this_machine and holder.pid == os.getpid()):
        raise OutputError(
            f"{output}: another run ({holder}) has taken it over, because this run had not renewed its claim for a minute. Start it"
            " again when no other run is at work there."
        )


def check_claim(output: str, claim: Claim | None) -> None:
    """Raise OutputError if a run has lost its claim on an output folder; a run without a claim passes None."""
    if claim is None:
        return
    holder = find_claim(output)
    if holder is not None and holder.run == claim.run:
        return
    loss = "was removed" if holder is None else f"was taken over by another run ({holder})"
    raise OutputError(
        f"{output}: the claim of this run {loss}, so it completes nothing. Run again with --resume when no other run is at work"
        " there."
    )


@contextlib.contextmanager
def hold_claim(
    output: str,
    claim: Claim,
    has_ended: HasEnded | None = None,
    job_continues: Callable[[], bool] = lambda: False,
    *,
    fix: str = CONVERSION_FIX,
    dead_after: float = DEAD_AFTER_SECONDS,
    beat_seconds: float = BEAT_SECONDS,
) -> Iterator[None]:
    """Hold a claim on an output folder while the context lasts.

    At its end, unless the job continues, the claim is removed, and so are local folders that did not exist before and are empty.

    Args:
        output: the folder.
        claim: claim of the run.
        has_ended: returns whether a claim's job has ended; None if no runner can be asked.
        job_continues: called at the end; returns whether the run's job may continue, in which case the claim stays.
        fix: advice in the error if another run is at work there.
        dead_after: seconds for which a claim of another machine must stand still for its run to count as dead.
        beat_seconds: seconds between two renewals of the claim.

    Raises:
        OutputError: another run is or may be at work there, this version does not understand its claim, or other runs were first
            at each of 100 tries.
        StorageError: the claim cannot be read or written.
    """
    new_folders = _list_missing_folders(output)
    stop = threading.Event()
    try:
        take_claim(output, claim, has_ended, fix=fix, dead_after=dead_after)
        # Claims of pipelines and jobs are not renewed: see `PROCESS`.
        if claim.ends_with == PROCESS:
            threading.Thread(
                target=_renew_claim, args=(output, claim, stop, beat_seconds), name="tpudata-claim", daemon=True
            ).start()
        yield
    finally:
        stop.set()
        if not job_continues():
            with contextlib.suppress(StorageError):
                drop_claim(output, claim)
            for folder in new_folders:
                # Removes the folder only if nothing was written in it.
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _renew_claim(output: str, claim: Claim, stop: threading.Event, seconds: float) -> None:
    """Rewrite a claim every `seconds`, until `stop` is set or the run no longer holds it."""
    path, storage = claim_path(output), storage_for(output)
    while not stop.wait(seconds):
        # A failed write is repeated at the next beat.
        with contextlib.suppress(StorageError):
            content = read_claim(path)
            holder = parse_claim(content)
            if holder is None or holder.run != claim.run:
                return
            storage.swap(path, content, dataclasses.replace(holder, beat=holder.beat + 1).to_bytes())


def _list_missing_folders(output: str) -> list[Path]:
    """Return the folders that have to be created for a local output, the innermost first; object stores need none."""
    if is_remote(output):
        return []
    path = Path(local_path(output))
    with translate_errors("looked up", output):
        return [folder for folder in (path, *path.parents) if not folder.exists()]
