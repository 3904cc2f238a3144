"""Faults of the store: their kinds, the requests that meet them, and their number."""

from __future__ import annotations

import dataclasses
import fnmatch
import threading

# By kind: what happens.
KINDS = {
    "429": "the answer is 429, too many requests",
    "500": "the answer is 500",
    "503": "the answer is 503",
    "401": "the answer is 401",
    "403": "the answer is 403",
    "404": "the answer is 404",
    "expired": "every token that was given out is no longer good",
    "reset": "the connection is reset before anything is done",
    "lost": "it is done, and the connection is reset before the answer",
    "truncated": "half of the answer's body comes, then the connection is closed",
    "slow": "the answer's body comes piece by piece, over `seconds`",
    "corrupt": "one bit of the body is another, on the way out or in",
    "cut": "half of the bytes sent are taken, then the connection is reset",
    "empty": "nothing is done, and the answer is 200 with an empty body",
    "html": "nothing is done, and the answer is 200 with a page of HTML",
    "unsaid": "it is done, and the answer is 200 with an empty body",
    "short": "half of the answer's body comes, and its head says that this is all",
    "unhashed": "as corrupt, and the answer lacks X-Goog-Hash",
    "duplicate": "it is done twice; the answer is that to the second request",
    "stall": "it is done, and the answer does not come; after `seconds` the connection is reset",
    "unstored": "the answer is as it should be, and the object that it is about is not there",
}
# What a request is for; "part" is a part of an upload that `upload` has begun.
OPERATIONS = (
    "list",
    "stat",
    "read",
    "upload",
    "part",
    "status",
    "abandon",
    "delete",
    "copy",
    "batch",
    "bucket",
    "token",
)


@dataclasses.dataclass
class Fault:
    """A fault that requests meet.

    Args:
        kind: one of KINDS.
        operation: kind of the requests, one of OPERATIONS or a pattern of them.
        where: objects of the requests, a pattern of BUCKET/OBJECT.
        count: number of requests that meet it; None for all.
        passing: number of such requests that are spared first.
        seconds: duration of a slow body, or time until an answer that never comes is given up.
    """

    kind: str
    operation: str = "*"
    where: str = "*"
    count: int | None = 1
    passing: int = 0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}; there are {', '.join(KINDS)}")
        if not fnmatch.filter(OPERATIONS, self.operation):
            raise ValueError(f"operation={self.operation!r}; there are {', '.join(OPERATIONS)}")


class Faults:
    """The faults of a store.

    Attributes:
        met: number of requests that met a fault.
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.met = 0

    def add(self, *faults: Fault) -> None:
        """Lets them happen from now on."""
        with self._lock:
            self._faults += [dataclasses.replace(fault) for fault in faults]

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self._faults.clear()

    def take(self, operation: str, where: str) -> Fault | None:
        """Return the fault that a request meets, or None."""
        with self._lock:
            for fault in self._faults:
                if not fnmatch.fnmatchcase(operation, fault.operation) or not fnmatch.fnmatchcase(where, fault.where):
                    continue
                if fault.passing:
                    fault.passing -= 1
                    continue
                if fault.count is None or fault.count:
                    fault.count = None if fault.count is None else fault.count - 1
                    self.met += 1
                    return fault
        return None
