"""A defect that verification finds."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Defect:
    """A damaged, missing or surplus part of a dataset.

    Attributes:
        path: path of the file.
        offset: byte in that file of the damaged record, line or block, or at which a file ends too early. None if the file as a
            whole is missing or surplus.
        reason: the problem, in words.
    """

    path: str
    offset: int | None
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}"
            if self.offset is None
            else f"{self.path} at byte {self.offset}: {self.reason}"
        )
