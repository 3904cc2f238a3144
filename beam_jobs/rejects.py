"""Refused inputs: listed by name and reason, counted by kind.

`DIR/rejects/train-00000-of-00012.jsonl`, one a shard that has any, and `DIR/rejects/listing-*.jsonl` for what was refused
before it had a place in a shard. A JSON object a line:

    {"source": path or key of the input, "offset": byte in that file or null, "reason": why it was refused}
"""

from __future__ import annotations

import json
import re
from collections import Counter

from tpudata.errors import BadRecordError
from tpudata.format.layout import REJECTS_FOLDER, SHARD_SUFFIX
from tpudata.storage import storage_for

_NUMBER = re.compile(r"\d+")


class Rejects:
    """The refused inputs of one shard, or of a part of the listing.

    Args:
        name: the shard's file name, or that of the part.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[str] = []
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self._lines)

    @property
    def first(self) -> str:
        """The first of them, as it is written."""
        return self._lines[0] if self._lines else ""

    def add(self, error: BadRecordError) -> None:
        """Lists one refused input."""
        self._lines.append(json.dumps({"source": error.source, "offset": error.offset, "reason": error.reason}))
        self._counts[_kind(error.reason)] += 1

    def counts(self) -> dict[str, int]:
        """How many there are of each kind: the reason without its particulars."""
        return dict(sorted(self._counts.items()))

    def write(self, output: str) -> None:
        """Writes them into the dataset's folder; no file where there are none."""
        if self._lines:
            with storage_for(output).create(self._path(output)) as file:
                file.write("".join(f"{line}\n" for line in self._lines).encode())

    def written(self, output: str) -> bool:
        """Whether the shard's rejects stand in the dataset's folder."""
        return storage_for(output).stat(self._path(output)) is not None

    def _path(self, output: str) -> str:
        return storage_for(output).join(output, rejects_name(self.name))


def rejects_name(shard: str) -> str:
    """Path of a shard's rejects below the dataset's folder, such as `rejects/train-00000-of-00012.jsonl`."""
    return f"{REJECTS_FOLDER}/{shard.removesuffix(SHARD_SUFFIX)}.jsonl"


def _kind(reason: str) -> str:
    return _NUMBER.sub("N", re.split(r": | \(", reason)[0])
