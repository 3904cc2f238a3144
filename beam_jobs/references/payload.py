"""Kinds of the bytes that references lead to, and the texts by which entries of inputs know them.

Rooms that read bytes other than self-describing files derive their class: bare pixels, rows of text, stored
records. What it needs next to the bytes are its fields, so they travel once for many references.
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
    """Kind of a record's bytes; this one's describe themselves, as image files do.

    Attributes:
        is_escaped: whether the text of features has only ASCII.
        is_fetched: whether `fetch` reads the bytes, which are then no range of a file.
    """

    is_escaped: ClassVar[bool] = True
    is_fetched: ClassVar[bool] = False

    def fetch(self, reference: Reference) -> bytes:
        """Return the bytes of a record, if `is_fetched`; called by the worker that converts it, perhaps in several threads.

        Args:
            reference: reference to the record, whose path and offset have the meaning that its source gives them.

        Raises:
            ValueError: the record cannot be read, which makes it a bad record.
        """
        raise NotImplementedError

    @property
    def may_repeat(self) -> bool:
        """Whether a key may occur several times, as all its records are equal."""
        return False

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the parts of its kind and features that the entry of an input hashes.

        Entries are on disk, so these are the texts that references had in earlier versions, and each is empty if there is nothing.

        Args:
            crc32: CRC-32 of the bytes, or None if it is unknown.
            features: values by name.
        """
        return "" if crc32 is None else f"crc32:{crc32:08x}", features_text(features, is_escaped=self.is_escaped)


SELF_DESCRIBING = Payload()


def features_text(features: Mapping[str, Any], *, is_escaped: bool) -> str:
    """Return features as the text of a JSON object, with NaN as Python writes it, in their order; empty without features.

    Args:
        features: values by name; NumPy's become lists and numbers, bytes become a digest.
        is_escaped: whether the text has only ASCII.
    """
    return _ENCODERS[is_escaped].encode(features) if features else ""


def _to_json_value(value: Any) -> Any:
    """Return a value that JSON does not have as one that it has."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"blake2b:{hashlib.blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()}"
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a number, string, bytes, array or list of these")


# json.dumps would make an encoder for each call.
_ENCODERS = {
    is_escaped: json.JSONEncoder(ensure_ascii=is_escaped, default=_to_json_value) for is_escaped in (False, True)
}
