"""Faults of the store: their kinds, and the requests that meet them."""

from __future__ import annotations

import dataclasses
import fnmatch
import threading

# Kinds of faults, and what happens.
KINDS = {
    "429": "the answer is 429, too many requests",
    "500": "the answer is 500",
    "503": "the answer is 503",
    "401": "the answer is 401",
    "403": "the answer is 403",
    "404": "the answer is 404",
    "expired": "all tokens that were issued expire",
    "reset": "the connection is reset before the request is executed",
    "lost": "the request is executed, and the connection is reset before the answer",
    "truncated": "half of the answer's body is sent, then the connection is closed",
    "slow": "the answer's body is sent piece by piece, over `seconds`",
    "corrupt": "one bit of the body is changed: of the request's if it sends data, otherwise of the answer's",
    "cut": "half of the request's body is read and stored, then the connection is reset",
    "empty": "the request is not executed, and the answer is 200 with an empty body",
    "html": "the request is not executed, and the answer is 200 with a page of HTML",
    "unsaid": "the request is executed, and the answer is 200 with an empty body",
    "short": "half of the answer's body is sent, and its Content-Length says that this is all",
    "unhashed": "as corrupt, and the answer lacks X-Goog-Hash",
    "duplicate": "the request is executed twice; the answer is that to the second execution",
    "stall": "the request is executed, and no answer is sent; after `seconds` the connection is reset",
    "unstored": "the answer is correct, but the object is not in the store",
}
# Operations of requests; "part" is a part of an upload that `upload` has begun, "status" a request for its received size.
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
        operation: operation of the requests, one of OPERATIONS or a pattern of them.
        where: objects of the requests, a pattern of BUCKET/OBJECT.
        count: number of requests that meet the fault; None for all.
        passing: number of requests with this operation and object that pass before the fault begins.
        seconds: seconds in which a slow body is sent, or after which a stalled connection is reset.
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
        """Let requests meet faults from now on; an earlier fault goes before later ones."""
        with self._lock:
            self._faults += [dataclasses.replace(fault) for fault in faults]

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def take(self, operation: str, where: str) -> Fault | None:
        """Return the fault that a request meets, the first that is due, and count it; None if the request meets none.

        Args:
            operation: the request's operation.
            where: its BUCKET/OBJECT.
        """
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
