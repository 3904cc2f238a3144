"""Claim on a folder, such as a dataset's or a model's: only the run that holds it may write there.

A claim is a small file of the folder, `DIR/.tpudata-claim`: a JSON object that names the run, its process and when it began. It is
made, taken over and removed in single steps of the storage (`Storage.swap`), so that of several runs one gets it. A run removes its
claim when it ends, also with an error; a killed one leaves it. Whether the run of a claim is dead is known

- on the same machine by its process: the id, and when the process began, since ids are used again;
- elsewhere by its beat: a run of the local runner rewrites its claim every few seconds. One that stands still for a minute is dead;
- of a job on another runner, which may outlive the process that started it, by asking its engine, if the claim names the job. Its
  last step removes the claim;
- of `WriteTFRecordShards` on another machine: not at all. Its claim goes when the job ends; until then the person decides.

A run looks for its claim before each shard and before the manifest is written: one that was taken over, because it stood still for
too long, ends with an error and completes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tpudata.errors import OutputError, StorageError, StorageUnavailableError
from tpudata.storage import is_remote, storage_for
from tpudata.storage.claims.process_identity import birth_of, machine_identity
from tpudata.storage.local.file_urls import local_path
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

CLAIM_NAME = f"{TEMPORARY_PREFIX}claim"
# How long a process on another machine, or the store between, may take before its run counts as dead.
DEAD_AFTER_SECONDS = 60.0
BEAT_SECONDS = 10.0
_log = logging.getLogger("tpudata")
_LOOK_EVERY_SECONDS = 1.0
_TRIES = 100
# What ends together with a run: its process, which beats; its process, which has no thread for that; or a job, which may go on
# without the process that started it.
PROCESS, PIPELINE, JOB = "process", "pipeline", "job"
_OF_CONVERSIONS = "Wait until it has ended, or end it and run again with --resume; or name another folder."


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run's claim on an output folder, as its file holds it.

    Attributes:
        run: unique name of the run.
        ends_with: PROCESS, PIPELINE or JOB.
        host, pid: of the process that started it.
        machine: tells machines and containers of one host name apart.
        birth: when the process began, as its system counts.
        started: when the run began, for people.
        beat: how often the claim was rewritten.
        job: identity of the submitted job, as `beam_jobs.run.job` writes it; None before it is submitted.
    """

    run: str
    ends_with: str
    host: str
    pid: int
    machine: str
    birth: str
    started: str
    beat: int = 0
    job: Mapping[str, str] | None = None

    @classmethod
    def new(cls, ends_with: str) -> Claim:
        """Return the claim of a run that this process starts."""
        pid = os.getpid()
        started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        machine = machine_identity()
        return cls(uuid.uuid4().hex, ends_with, socket.gethostname(), pid, machine, birth_of(pid) or "", started)

    @classmethod
    def from_bytes(cls, data: bytes) -> Claim | None:
        """Return the claim in a file, or None if it holds none that this version understands."""
        try:
            claim = cls(**json.loads(data))
            is_job = claim.job is None or {"id", "where"} <= claim.job.keys()
            return claim if isinstance(claim.run, str) and is_job else None
        except (ValueError, TypeError, AttributeError):
            return None

    def to_bytes(self) -> bytes:
        """Return the content of the claim's file."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode()

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the process is one of this machine, so that it can be looked up."""
        return (self.host, self.machine) == (socket.gethostname(), machine_identity())

    def __str__(self) -> str:
        job = "" if self.job is None else f", job {self.job['id']}, {self.job['where']}"
        return f"host {self.host}, process {self.pid}, since {self.started}{job}"


# Whether the job that a claim names has ended; None if its engine does not say.
HasEnded = Callable[[Mapping[str, str]], bool | None]


def claim_path(output: str) -> str:
    """Return the path of the claim on an output folder."""
    return storage_for(output).join(output, CLAIM_NAME)


def refuse_claimed(output: str, has_ended: HasEnded | None = None) -> None:
    """Raise OutputError if another run is at work in an output folder, or may be. May wait for a minute to see.

    Args:
        output: the folder.
        has_ended: asks the engine of a claim's job; None asks nobody.
    """
    path = claim_path(output)
    _refuse_living(output, path, _read(path), has_ended)


def remove_dead_claim(output: str, has_ended: HasEnded | None = None) -> None:
    """Remove the claim of a run that was killed after it had completed its dataset; arguments and errors as `refuse_claimed`."""
    path = claim_path(output)
    standing = _read(path)
    _refuse_living(output, path, standing, has_ended)
    if standing is not None:
        storage_for(output).swap(path, standing, None)


def take_claim(output: str, claim: Claim, has_ended: HasEnded | None = None, *, fix: str = _OF_CONVERSIONS) -> None:
    """Claim an output folder for a run; it may have done so before.

    Args:
        output: the folder.
        claim: of the run.
        has_ended: as for `refuse_claimed`.
        fix: what a person does if another run is at work there.

    Raises:
        OutputError: another run is at work there, or may be.
        StorageError: the claim cannot be written.
    """
    path, storage = claim_path(output), storage_for(output)
    for _ in range(_TRIES):
        standing = _read(path)
        found = _claim_in(standing)
        if found is not None and found.run == claim.run:
            return
        _refuse_living(output, path, standing, has_ended, fix)
        if storage.swap(path, standing, claim.to_bytes()):
            return
        # Another run was faster, or has just ended.
        time.sleep(random.uniform(0, 0.1))
    raise OutputError(f"{output}: other runs keep claiming it. Run one at a time, or name another folder.")


def name_job(output: str, claim: Claim, job: Mapping[str, str]) -> None:
    """Write the identity of its job into a run's claim, if it still is the run's; a job that ended at once has removed it."""
    path = claim_path(output)
    for _ in range(_TRIES):
        standing = _read(path)
        found = _claim_in(standing)
        if found is None or found.run != claim.run:
            return
        if storage_for(output).swap(path, standing, dataclasses.replace(found, job=dict(job)).to_bytes()):
            return


def drop_claim(output: str, claim: Claim) -> None:
    """Remove a run's claim, if it still is the run's."""
    path = claim_path(output)
    for _ in range(_TRIES):
        standing = _read(path)
        found = _claim_in(standing)
        if found is None or found.run != claim.run or storage_for(output).swap(path, standing, None):
            return


def drop_pipeline_claim(output: str, claim: Claim | None) -> None:
    """Remove the claim of a pipeline whose step fails for good: no later step would."""
    if claim is not None and claim.ends_with == PIPELINE:
        drop_claim(output, claim)


def own_claim(output: str) -> Claim | None:
    """Return the claim on an output folder if its run ends with this process, which holds it; else None."""
    claim = _claim_in(_read(claim_path(output)))
    is_own = claim is not None and claim.is_of_this_machine and claim.pid == os.getpid() and claim.ends_with == PROCESS
    return claim if is_own else None


def check_own(output: str) -> None:
    """Raise OutputError if another process has taken a folder over; one without a claim is nobody's."""
    found = _claim_in(_read(claim_path(output)))
    if found is not None and not (found.is_of_this_machine and found.pid == os.getpid()):
        raise OutputError(
            f"{output}: another run ({found}) has taken it over, as this one had shown no sign of life for a minute. This one"
            " writes nothing more."
        )


def has_claim(output: str, claim: Claim) -> bool:
    """Return whether a run still holds its claim on an output folder."""
    found = _claim_in(_read(claim_path(output)))
    return found is not None and found.run == claim.run


def check_claim(output: str, claim: Claim | None) -> None:
    """Raise OutputError if a run has lost its claim on an output folder; None stands for a run without one."""
    if claim is None:
        return
    found = _claim_in(_read(claim_path(output)))
    if found is not None and found.run == claim.run:
        return
    loss = "was removed" if found is None else f"was taken over by another run ({found})"
    raise OutputError(
        f"{output}: the claim of this run {loss}, so it completes nothing. Run again with --resume when no other run is at work"
        " there."
    )


@contextlib.contextmanager
def claimed(
    output: str,
    claim: Claim,
    has_ended: HasEnded | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    *,
    fix: str = _OF_CONVERSIONS,
) -> Iterator[None]:
    """Hold a claim on an output folder while the context lasts.

    Args:
        output: the folder.
        claim: of the run.
        has_ended: as for `refuse_claimed`.
        goes_on: returns in the end whether the run has a job that may go on; its claim then stays.
        fix: as for `take_claim`.
    """
    made = _missing_folders(output)
    stop = threading.Event()
    try:
        take_claim(output, claim, has_ended, fix=fix)
        if claim.ends_with == PROCESS:
            threading.Thread(target=_beat, args=(output, claim, stop), name="tpudata-claim", daemon=True).start()
        yield
    finally:
        stop.set()
        if not goes_on():
            with contextlib.suppress(StorageError):
                drop_claim(output, claim)
            for folder in made:
                # Those in which nothing was written.
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _refuse_living(
    output: str, path: str, standing: bytes | None, has_ended: HasEnded | None, fix: str = _OF_CONVERSIONS
) -> None:
    """Raise OutputError unless the run of a claim is known to be dead."""
    if standing is None:
        return
    claim = Claim.from_bytes(standing)
    if claim is None:
        raise OutputError(
            f"{path} is no claim that this version understands. If no run is at work in {output}, remove it and run again."
        )
    if claim.ends_with != JOB and claim.is_of_this_machine:
        is_own = claim.pid == os.getpid()
        # A pipeline of this process that failed has nobody to remove its claim.
        is_dead = birth_of(claim.pid) != claim.birth or (is_own and claim.ends_with == PIPELINE)
    elif claim.ends_with == PROCESS:
        _log.warning(
            "%s: another run (%s) may be at work there; looking for up to %g s.", output, claim, DEAD_AFTER_SECONDS
        )
        is_dead = _stands_still(path, standing)
    elif claim.job is not None and has_ended is not None and (ended := has_ended(claim.job)) is not None:
        is_dead = ended
    else:
        kind = "a job" if claim.ends_with == JOB else "a pipeline"
        raise OutputError(
            f"{output}: {kind} of another run ({claim}) has claimed it, and nothing here says whether it has ended. If it has,"
            f" remove {path} and run again with --resume."
        )
    if not is_dead:
        raise OutputError(f"{output}: another run is at work there ({claim}). {fix}")


def _stands_still(path: str, standing: bytes) -> bool:
    """Watch a claim, and return whether nobody has rewritten it for so long that its run must be dead."""
    deadline = time.monotonic() + DEAD_AFTER_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(_LOOK_EVERY_SECONDS, DEAD_AFTER_SECONDS))
        found = _read(path)
        if found != standing:
            # Gone, or taken over by a run that is dead, too: whoever asked looks again.
            return found is None
    return True


def _beat(output: str, claim: Claim, stop: threading.Event) -> None:
    """Rewrite a claim every few seconds, until it is to stop or is no longer the run's."""
    path, storage = claim_path(output), storage_for(output)
    while not stop.wait(BEAT_SECONDS):
        # What cannot be written now may be so the next time.
        with contextlib.suppress(StorageError):
            standing = _read(path)
            found = _claim_in(standing)
            if found is None or found.run != claim.run:
                return
            storage.swap(path, standing, dataclasses.replace(found, beat=found.beat + 1).to_bytes())


def _read(path: str) -> bytes | None:
    storage = storage_for(path)
    try:
        return storage.read(path)
    except StorageUnavailableError:
        raise
    except StorageError:
        if storage.stat(path) is None:
            return None
    # It was replaced meanwhile, or cannot be read.
    return storage.read(path)


def _claim_in(standing: bytes | None) -> Claim | None:
    return None if standing is None else Claim.from_bytes(standing)


def _missing_folders(output: str) -> list[Path]:
    """Return the folders that a local output needs and that are not there, the innermost first."""
    if is_remote(output):
        return []
    path = Path(local_path(output))
    return [folder for folder in (path, *path.parents) if not folder.exists()]
