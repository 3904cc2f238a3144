"""A claim on a folder, such as a dataset's or a model's: only the run that holds it may write there.

A claim is a small file of the folder, `DIR/.tpudata-claim`: a JSON object that names the run, its process and the process's start
time. It is created, taken over and removed atomically (`Storage.swap`), so only one of several runs gets it. A run
removes its claim when it ends, even with an error; a killed run leaves it. `hold` takes and removes claims; `liveness` decides
whether the run of a claim is dead.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping

from tpudata.checked_json import INT64_MAX, NULL, TEXT, WHOLE, Entries, Keys, Plain, parse_json
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage import storage_for
from tpudata.storage.claims.process_identity import identify_machine, read_birth
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

CLAIM_NAME = f"{TEMPORARY_PREFIX}claim"
# A run ends with one of these: its process, which rewrites the claim; a pipeline of its process, which does not; or a submitted
# job, which may continue without the process that started it.
PROCESS, PIPELINE, JOB = "process", "pipeline", "job"
_ENDS = Plain((str,), pattern=re.compile(f"{PROCESS}|{PIPELINE}|{JOB}"), words=f"{PROCESS}, {PIPELINE} or {JOB}")
_SCHEMA = Keys(
    {"run": TEXT, "ends_with": _ENDS, "host": TEXT, "pid": WHOLE, "machine": TEXT, "birth": TEXT, "started": TEXT},
    {"beat": Plain((int,), high=INT64_MAX - 1), "job": Plain((dict, NULL))},
)
_JOB_SCHEMA = Keys({"id": TEXT, "where": TEXT}, allows_unknown_keys=True)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run's claim on an output folder, as its file holds it.

    Attributes:
        run: unique name of the run.
        ends_with: PROCESS, PIPELINE or JOB.
        host: host name of the process that started it.
        pid: id of that process.
        machine: identity of the machine or container, since host names may be equal.
        birth: start time of the process, as `process_identity` reads it.
        started: start time of the run, for people.
        beat: number of times that the run has rewritten the claim.
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
        """Return the claim of a run that this process starts.

        Args:
            ends_with: what the run ends with: `PROCESS`, `PIPELINE` or `JOB`.
        """
        pid = os.getpid()
        return cls(
            run=uuid.uuid4().hex,
            ends_with=ends_with,
            host=socket.gethostname(),
            pid=pid,
            machine=identify_machine(),
            # Empty if the system does not report it.
            birth=read_birth(pid) or "",
            started=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Claim | None:
        """Return the claim in a file, or None if this version does not understand it."""
        try:
            value = parse_json(data)
            _SCHEMA.check("", value)
            # Not in the schema: `job` must match two schemas, and may be null.
            if value.get("job") is not None:
                Entries(Plain((str, NULL))).check("job", value["job"])
                _JOB_SCHEMA.check("job", value["job"])
        except ValueError:
            return None
        return cls(**value)

    def to_bytes(self) -> bytes:
        """Return the content of the claim's file."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode()

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the process is on this machine, so that it can be looked up."""
        return (self.host, self.machine) == (socket.gethostname(), identify_machine())

    def __str__(self) -> str:
        job = "" if self.job is None else f", job {self.job['id']}, {self.job['where']}"
        return f"host {self.host}, process {self.pid}, since {self.started}{job}"


def claim_path(output: str) -> str:
    """Return the path of the claim on an output folder."""
    return storage_for(output).join(output, CLAIM_NAME)


def find_claim(output: str) -> Claim | None:
    """Return the claim on an output folder; None without a claim, or if this version does not understand it."""
    return parse_claim(read_claim(claim_path(output)))


def find_own_claim(output: str) -> Claim | None:
    """Return the claim on an output folder if this process holds it, for a run that ends with the process; else None."""
    claim = find_claim(output)
    is_own = claim is not None and claim.is_of_this_machine and claim.pid == os.getpid() and claim.ends_with == PROCESS
    return claim if is_own else None


def has_claim(output: str, claim: Claim) -> bool:
    """Return whether a run still holds its claim on an output folder."""
    holder = find_claim(output)
    return holder is not None and holder.run == claim.run


def read_claim(path: str) -> bytes | None:
    """Return the content of a claim's file, or None if the file does not exist."""
    storage = storage_for(path)
    try:
        return storage.read(path)
    except StorageUnavailableError:
        # An outage does not mean that there is no claim.
        raise
    except StorageError:
        if storage.stat(path) is None:
            return None
    # Either the file was just replaced, and a second read succeeds; or it cannot be read, and this raises the error again.
    return storage.read(path)


def parse_claim(content: bytes | None) -> Claim | None:
    """Parse the content of a claim's file; None without a file, or if this version does not understand it."""
    return None if content is None else Claim.from_bytes(content)
