"""Results of verification: a problem of a record, and a defect of a dataset."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

# Names of the problems of labels and annotations.
BOXES, CLASSES, LISTS, MASKS = "boxes", "classes", "lists", "masks"


class Problem(NamedTuple):
    """A problem of the content of a record.

    Attributes:
        reason: the problem, in words.
        kind: name of the problem of a label or an annotation: `BOXES`, `CLASSES`, `LISTS` or `MASKS`; empty for other problems.
    """

    reason: str
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Defect:
    """A damaged, missing or unexpected part of a dataset.

    Attributes:
        path: path of the file.
        offset: byte in that file of the damaged record, line or block, or at which a file ends too early; for a record of a
            compressed shard, in its unpacked bytes. None for defects without an offset, such as a missing or unexpected file.
        reason: the problem, in words.
        kind: name of the problem of a label or an annotation: "boxes", "classes", "lists" or "masks"; empty for other problems.
    """

    path: str
    offset: int | None
    reason: str
    kind: str = ""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}"
            if self.offset is None
            else f"{self.path} at byte {self.offset}: {self.reason}"
        )
