"""Payloads: the kinds of bytes that references point to, and their part of the hash that identifies an input for --append.

A package whose references point to other bytes (bare pixels, rows of text, stored records) derives its own class.
Facts that reading needs besides the bytes are fields of that class, so they travel once for many references.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from beam_jobs.references.reference import Reference

_DIGEST_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Payload:
    """Kind of a record's bytes. This base class is for bytes that describe themselves, such as image files.

    Attributes:
        is_escaped: whether `entry_texts` escapes the non-ASCII characters of features.
        is_fetched: whether `fetch` reads the bytes, instead of a read of the reference's range of its file.
    """

    is_escaped: ClassVar[bool] = True
    is_fetched: ClassVar[bool] = False

    def fetch(self, reference: Reference) -> bytes:
        """Return the bytes of a record; called if `is_fetched`, by the worker that converts it, perhaps in several threads.

        A subclass with `is_fetched` overrides this.

        Args:
            reference: reference to the record; its source decides what path and offset mean.

        Raises:
            ValueError: the record cannot be read, which makes it a bad record.
        """
        raise NotImplementedError

    @property
    def may_repeat(self) -> bool:
        """Whether a key may occur several times, because all records with that key are equal; False by default."""
        return False

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return (kind, features): the strings that this payload adds to the hash that identifies an input.

        The kind says how the bytes become a record; for bytes that describe themselves it is only their CRC-32. Either string may
        be empty. The hashes are stored in datasets, so these strings must not change.

        Args:
            crc32: CRC-32 of the bytes, or None if it is unknown.
            features: values by name.
        """
        return "" if crc32 is None else f"crc32:{crc32:08x}", features_text(features, is_escaped=self.is_escaped)


SELF_DESCRIBING = Payload()


def features_text(features: Mapping[str, Any], *, is_escaped: bool) -> str:
    """Return features as JSON: an object in their order, with NaN as Python writes it; an empty string without features.

    Args:
        features: values by name; see `_to_json_value` for those that JSON cannot hold.
        is_escaped: whether characters that are not ASCII are escaped.
    """
    return _ENCODERS[is_escaped].encode(features) if features else ""


def _to_json_value(value: Any) -> Any:
    """Convert a value that JSON cannot hold: bytes to their digest; NumPy's values and a `RangedMap` to lists or numbers."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"blake2b:{hashlib.blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()}"
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a number, string, bytes, array or list of these")


# By `is_escaped`; json.dumps would make an encoder for each call.
_ENCODERS = {
    is_escaped: json.JSONEncoder(ensure_ascii=is_escaped, default=_to_json_value) for is_escaped in (False, True)
}
