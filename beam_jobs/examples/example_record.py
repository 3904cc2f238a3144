"""The kind of bytes that references to a user's examples point to: serialized records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.reference import Payload

# Name of a feature of references: the digest of the record of an example with a key.
DIGEST = "digest"


@dataclasses.dataclass(frozen=True)
class ExampleRecord(Payload):
    """The serialized record of an example.

    Attributes:
        signature: its features as a string, from `beam_jobs.examples.schema.make_signature`.
        is_keyed: whether the example has a key; otherwise the key of its reference is the digest of its content.
    """

    signature: str
    is_keyed: bool

    @property
    def may_repeat(self) -> bool:
        """Whether several references may have the same key, as those of equal examples without keys, which are all kept."""
        return not self.is_keyed

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the two strings that the payload adds to an input's hash, see `Payload.entry_texts`.

        They are the digest of the record instead of a kind, and the record's signature instead of its features. The digest covers
        all bytes of the record, so the CRC-32 is not used; it is empty for an example without a key.
        """
        del crc32
        return features.get(DIGEST, ""), self.signature


@functools.lru_cache(maxsize=4096)
def make_example_record(signature: str, *, is_keyed: bool) -> ExampleRecord:
    """Return the kind of a reference's bytes; cached, so that references share one object."""
    return ExampleRecord(signature, is_keyed)
