"""References, which travel through the pipeline instead of the bytes, and payloads: the kinds of bytes that they point to.

A package whose references point to bytes that do not describe themselves (bare pixels, rows of text, stored records) derives its
own class of payload. Facts that reading needs besides the bytes are fields of that class, so they travel once for many references.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.references.feature_text import features_text

# Offset of a reference to a whole file.
WHOLE_FILE = -1
# Bits of a half of a digest, and of a position in the order of records.
HASH_BITS = 64
DIGEST_BYTES = 16
# uint64 [n, 2]: the high and the low half of each digest.
Digests: TypeAlias = npt.NDArray[np.uint64]
# Shared by all references without features.
NO_FEATURES: Mapping[str, Any] = {}


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


class Reference(NamedTuple):
    """One input record: its address, and the facts that its record in the output needs.

    Attributes:
        key: the record's stable name, for a file its path below the input with `/`; unique in the input, unless
            `payload.may_repeat`.
        split: name of the split.
        labels: names of its classes; one for most inputs, empty if the input has none.
        path: path of the file that contains it.
        offset: byte offset in the file, or WHOLE_FILE.
        size: size of the record in the file, in bytes.
        payload: kind of its bytes.
        crc32: CRC-32 that its bytes must have, or None if the source has none.
        features: extra features of its record, by name: numbers, strings, bytes, lists of these, or numpy arrays.
        data: the bytes themselves if the file has no addressable members (a compressed stream); otherwise empty. Only sources set
            it; the listing step spools the bytes.
        spool: the file that the bytes were spooled to, to which offset and size then refer; empty if they were not spooled.
    """

    key: str
    split: str
    labels: tuple[str, ...]
    path: str
    offset: int
    size: int
    payload: Payload = SELF_DESCRIBING
    crc32: int | None = None
    features: Mapping[str, Any] = NO_FEATURES
    data: bytes = b""
    spool: str = ""

    def entry_texts(self) -> tuple[str, str]:
        """Return the strings for payload and features in the hash that identifies the input, see `Payload.entry_texts`."""
        return self.payload.entry_texts(self.crc32, self.features)

    @property
    def origin(self) -> str:
        """Name of the record for messages: its file; its key and its file if the file holds many, or if its bytes are fetched."""
        is_file = self.offset == WHOLE_FILE and not self.payload.is_fetched
        return self.path if is_file else f"{self.key} in {self.path}"


def key_bytes(key: str) -> bytes:
    """Return the bytes of a key; file names that are not UTF-8 keep their bytes on disk."""
    return key.encode("utf-8", "surrogateescape")


def key_digest(key: str) -> int:
    """Return the 128-bit BLAKE2b hash of a key: the same between versions, machines and runs."""
    return int.from_bytes(_hash_key(key), "big")


def key_digests(keys: Iterable[str]) -> Digests:
    """Return the digests of many keys, see `key_digest`."""
    return parse_digests(map(_hash_key, keys))


def parse_digests(digests: Iterable[bytes]) -> Digests:
    """Convert digests of 16 bytes each to numbers."""
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64)


def split_position(digest: int) -> int:
    """Return the number in [0, 2**64) that decides a record's split: the high half of its digest, independent of the seed."""
    return digest >> HASH_BITS


def _hash_key(key: str) -> bytes:
    """Return the digest of a key, `DIGEST_BYTES` bytes of BLAKE2b."""
    return hashlib.blake2b(key_bytes(key), digest_size=DIGEST_BYTES).digest()
