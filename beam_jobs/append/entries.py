"""The entries of inputs (tpudata.format.shards.keys describes them): written for every shard, and searched by an append."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from beam_jobs.output.rejects import format_reject_line
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import HASH_BITS, Digests, Reference, key_digests
from tpudata.errors import BadRecordError
from tpudata.format.shards.keys import ENTRY, ENTRY_BYTES, RECORD, REJECTED, Entries

_HASH_BYTES = ENTRY_BYTES - len(RECORD)
# Multiplying by it, modulo 2**64, and folding the high half onto the low one spreads description and size over 64 bits.
_GOLDEN = 0x9E3779B97F4A7C15
_LAST_BYTE = 0xFF


class Standing(enum.IntEnum):
    """Whether a dataset has an input.

    NEW: the dataset has no record of the reference, and does not list it in its present state as rejected. An error is new if the
        dataset does not list this rejection, even if it has a record of the input.
    RECORD: the dataset has a record of it, and its size, class, split and features are the same.
    REJECTED: it was rejected in the same state, so it is not tried again.
    CHANGED: the dataset has a record of it, and its size, class, split or features have changed.
    """

    NEW = enum.auto()
    RECORD = enum.auto()
    REJECTED = enum.auto()
    CHANGED = enum.auto()


def make_entries(packs: Sequence[Pack], digests: Sequence[Digests] | None = None) -> Entries:
    """Return the entries of all references of packs, in their order, each marked as a record.

    An entry is the first half of the key's digest, a hash of what the listing states of the input, and whether it was rejected.

    Args:
        packs: packs of the references.
        digests: digests of the keys of each pack; computed if omitted.
    """
    digests = digests or [pack.keys.digests() for pack in packs]
    # The words are big-endian, since entries are sorted as bytes.
    words = np.empty((sum(len(pack.keys) for pack in packs), 2), ">u8")
    first_row = 0
    for pack, pack_digests in zip(packs, digests, strict=True):
        # A single description if all references of the pack share it; NumPy broadcasts its hash to all rows.
        descriptions = np.array([_hash_description(*description) for description in pack.entry_texts()], np.uint64)
        rows = words[first_row : first_row + len(pack.keys)]
        rows[:, 0] = pack_digests[:, 0]
        rows[:, 1] = _hash_states(descriptions, pack.sizes.astype(np.uint64))
        first_row += len(rows)
    entries = words.view(np.uint8)
    # The mark of a record replaces the last byte of the hash.
    entries[:, -1] = RECORD[0]
    return entries.reshape(-1).view(ENTRY)


def mark_rejected(entries: Entries, rows: Sequence[int]) -> None:
    """Change the entries at `rows`, in place, to entries of rejected inputs."""
    entries.view(np.uint8).reshape(-1, ENTRY_BYTES)[rows, -1] = REJECTED[0]


def make_line_entry(line: bytes) -> bytes:
    """Return the entry of a line in rejects/: a hash of its key and reason if it has a key, else of the line.

    A key stays the same if its file has moved, unlike the line.
    """
    reject = json.loads(line)
    identity = repr((reject["key"], reject["reason"])).encode() if "key" in reject else line
    return hashlib.blake2b(identity, digest_size=_HASH_BYTES).digest() + REJECTED


def make_lookup_words(inputs: Sequence[Reference | BadRecordError]) -> npt.NDArray[np.uint64]:
    """Return the entries by which inputs are looked up, as numbers: uint64 [n, 2], the first and the last 8 bytes of each entry.

    The last byte of a reference's entry is 0, since it may be a record or rejected. The entry of an error is the one that
    `make_line_entry` makes of the error's line in rejects/.
    """
    words = np.empty((len(inputs), 2), np.uint64)
    rows = [row for row, listed_input in enumerate(inputs) if not isinstance(listed_input, BadRecordError)]
    references = [listed_input for listed_input in inputs if not isinstance(listed_input, BadRecordError)]
    descriptions = [
        _hash_description(reference.split, reference.labels, *reference.entry_texts()) for reference in references
    ]
    sizes = np.array([reference.size for reference in references], np.uint64)
    words[rows, 0] = key_digests([reference.key for reference in references])[:, 0]
    words[rows, 1] = _hash_states(np.array(descriptions, np.uint64), sizes) & ~np.uint64(_LAST_BYTE)
    for row, listed_input in enumerate(inputs):
        if isinstance(listed_input, BadRecordError):
            words[row] = np.frombuffer(make_line_entry(format_reject_line(listed_input)), ">u8")
    return words


def split_words(entries: Entries) -> npt.NDArray[np.uint64]:
    """Return entries as numbers: uint64 [n, 2], the first and the last 8 bytes of each."""
    return entries.view(np.dtype(">u8")).reshape(-1, 2).astype(np.uint64)


def find_single_standings(sought: npt.NDArray[np.uint64], stored: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return the standings of references whose keys have exactly one entry each in the dataset, uint8 [n]; see `find_standing`.

    Args:
        sought: second words of the references' entries, uint64 [n]: a hash of the state, and a byte that tells records from
            rejects and is not compared.
        stored: second words of the dataset's entries of the same keys, uint64 [n].
    """
    kind_mask = np.uint64(_LAST_BYTE)
    is_same = (sought | kind_mask) == (stored | kind_mask)
    is_record = (stored & kind_mask) == RECORD[0]
    standing_if_same = np.where(is_record, Standing.RECORD, Standing.REJECTED)
    standing_if_changed = np.where(is_record, Standing.CHANGED, Standing.NEW)
    return np.where(is_same, standing_if_same, standing_if_changed).astype(np.uint8)


def find_standing(sought: int, stored: Sequence[int], *, is_error: bool) -> Standing:
    """Return the standing of an input in a dataset.

    Args:
        sought: second word of the input's entry, from `make_lookup_words`.
        stored: second words of the dataset's entries with the same first word, ascending.
        is_error: whether the input was rejected before there was a reference to it.
    """
    # The entry of an error is a hash of its key and reason, see `make_line_entry`: no record has it, only the same rejection.
    if is_error:
        return Standing.REJECTED if sought in stored else Standing.NEW
    for word in stored:
        # The last byte tells records from rejects; the bytes before it are the hash of the input's state.
        if (word | _LAST_BYTE) == (sought | _LAST_BYTE):
            return Standing.RECORD if (word & _LAST_BYTE) == RECORD[0] else Standing.REJECTED
    # An input that was rejected in another state may be tried again: the dataset has no record of it.
    return Standing.CHANGED if any((word & _LAST_BYTE) == RECORD[0] for word in stored) else Standing.NEW


def _hash_states(descriptions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64-bit hashes of the hashed descriptions and the sizes of inputs, uint64 [n]."""
    # Datasets store these hashes, so the formula must not change. Sums and products wrap at 2**64.
    states = (descriptions + sizes) * np.uint64(_GOLDEN)
    return (states ^ (states >> np.uint64(32))) * np.uint64(_GOLDEN)


@functools.lru_cache(maxsize=4096)
def _hash_description(split: str, labels: tuple[str, ...], form: str, extra: str) -> int:
    """Return a 64-bit hash of what a listing states of an input; cached, since many inputs share a description.

    Args:
        split: name of the input's split.
        labels: names of its classes.
        form: first of its `Reference.entry_texts`, the kind of its bytes.
        extra: second of its `Reference.entry_texts`, its features.
    """
    text = repr((split, labels, form, extra)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=HASH_BITS // 8).digest(), "big")
