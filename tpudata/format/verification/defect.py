"""Something in a dataset that is not what it should be."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Defect:
    """Something in a dataset that is not what it should be.

    Attributes:
        path: the file.
        offset: byte in that file: of the record, line or block that is damaged, or where a file ends too early. None where the
            file as a whole is missing or should not be there.
        reason: what does not fit.
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
