"""The kind of bytes that references to stored records point to: frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.reference import Payload


@dataclasses.dataclass(frozen=True)
class StoredRecord(Payload):
    """The frame of a record in a TFRecord file.

    Attributes:
        dataset: index of the dataset that the file belongs to; None for a foreign file.
        split: split that the record has in the input.
        crc32c: crc32c of the shard, from the dataset's manifest; None for a foreign file.
    """

    dataset: int | None
    split: str
    crc32c: int | None

    @property
    def origin(self) -> str:
        """Index of the dataset and split, such as `0/train`, as a key of counts; empty for a foreign file."""
        return "" if self.dataset is None else f"{self.dataset}/{self.split}"

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the shard's CRC-32C in place of the kind, and `origin` in place of the features, which the checksum covers.

        The CRC-32C has 8 hexadecimal digits; it is empty for a foreign file.
        """
        del crc32, features
        return "" if self.crc32c is None else f"{self.crc32c:08x}", self.origin
