"""References: what travels through the pipeline in place of the bytes."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

WHOLE_FILE = -1
_HASH_BYTES = 8
HASH_BITS = 8 * _HASH_BYTES


class Reference(NamedTuple):
    """Where one input record is, and where it goes.

    Plain tuples of these fields travel between the steps, because Beam encodes them without pickling. They sort by position,
    then by key, which is the order of records in a shard.

    Attributes:
        position: 64-bit hash of seed and key; its place in the shuffled order of the split.
        key: the record's stable name, unique in the input: the path below the input, with `/`.
        split: name of the split.
        labels: names of its classes; one for most inputs, none where there are no classes.
        path: the file that holds it.
        offset: byte offset in the file, or WHOLE_FILE.
        size: bytes of the record in the file.
        form: how its bytes are to be read; empty for a file that says so itself.
        extra: a JSON object of further features, or empty.
        data: the bytes themselves where the file has no addressable members (a compressed stream); else empty.
    """

    position: int
    key: str
    split: str
    labels: tuple[str, ...]
    path: str
    offset: int
    size: int
    form: str = ""
    extra: str = ""
    data: bytes = b""


def key_bytes(key: str) -> bytes:
    """A key as bytes; file names that are not UTF-8 keep the bytes they have on disk."""
    return key.encode("utf-8", "surrogateescape")


def shuffled_position(key: str, seed: int) -> int:
    """Where a key stands in the shuffled order: a 64-bit hash that depends on seed and key alone."""
    return _hash(key, b"order:%d" % seed)


def split_position(key: str) -> int:
    """Where a key stands when splits are dealt out: a 64-bit hash that never changes, not even with the seed."""
    return _hash(key, b"split")


def _hash(key: str, purpose: bytes) -> int:
    # BLAKE2b is stable between versions and machines, keyed by purpose so that split and order are independent.
    digest = hashlib.blake2b(key_bytes(key), digest_size=_HASH_BYTES, key=purpose).digest()
    return int.from_bytes(digest, "big")
