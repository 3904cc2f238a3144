"""The plan of a conversion for a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class PlannedSplit:
    """The shards of one split.

    Attributes:
        records: number of records in the split.
        shards: number of shards of the split.
        bytes: estimated size of all shards.
    """

    records: int
    shards: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """Plan of a conversion's output; `str` gives the table of `--dry-run`.

    Attributes:
        splits: the splits by name; empty if an append would add nothing.
        inputs: number of inputs: files, documents or records.
        bytes: size of the inputs.
        warnings: noteworthy facts about the input, by kind, as in the manifest.
        table: the plan as text.
    """

    splits: Mapping[str, PlannedSplit]
    inputs: int
    bytes: int
    warnings: Mapping[str, str]
    table: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.table
