"""The kind of bytes that references to a user's examples lead to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.payload import Payload

# Feature of a reference: the digest of a record whose example has a key.
DIGEST = "digest"


@dataclasses.dataclass(frozen=True)
class ExampleRecord(Payload):
    """The serialised record of an example.

    Attributes:
        signature: its features, see beam_jobs.examples.schema.
        is_keyed: whether the example has a key; otherwise the key of its reference is the digest of its content.
    """

    signature: str
    is_keyed: bool

    @property
    def may_repeat(self) -> bool:
        """Whether equal examples are all kept."""
        return not self.is_keyed

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the digest of the record, empty without a key, and its signature."""
        del crc32
        return features.get(DIGEST, ""), self.signature


@functools.lru_cache(maxsize=4096)
def example_record(signature: str, *, is_keyed: bool) -> ExampleRecord:
    """Return the kind of a record: the same object for many references."""
    return ExampleRecord(signature, is_keyed)
