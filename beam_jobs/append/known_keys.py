"""What a dataset was made from: the entries of tpudata.format.keys, written for every shard and searched by an append.

An append gathers the entries of all shards in one sorted file, 16 bytes each, which every worker maps into its memory. So ten
million known inputs are 160 MB there, shared by the workers of a machine.
"""

from __future__ import annotations

import concurrent.futures
import enum
import functools
import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_jobs.output.rejects import listed_refusals, reject_line
from beam_jobs.references.pack import Pack
from beam_jobs.references.reference import HASH_BITS, Reference
from tpudata.errors import BadRecordError, OutputError
from tpudata.format import Dataset, Shard
from tpudata.format.keys import ENTRY, ENTRY_BYTES, KEY_BYTES, RECORD, REFUSED, Entries, ShardKeys
from tpudata.format.layout import keys_name
from tpudata.storage import storage_for

_HASH_BYTES = ENTRY_BYTES - len(RECORD)
# A product with it, modulo 2**64, and what its high half adds to the low one spread what is known of an input over 64 bits.
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << HASH_BITS) - 1
# Object stores are slow one by one.
_READERS = 16


class Standing(enum.Enum):
    """What a dataset has of an input."""

    NEW = enum.auto()
    RECORD = enum.auto()
    REFUSED = enum.auto()
    CHANGED = enum.auto()


def entry(reference: Reference, refused: bool = False) -> bytes:
    """The entry of an input: its key, what is known of it without reading it, and whether it was refused."""
    described = _described(reference.split, reference.labels, reference.form, reference.extra)
    state: int = _state(described, reference.size)
    head = (reference.digest >> HASH_BITS).to_bytes(KEY_BYTES, "big")
    return head + state.to_bytes(KEY_BYTES, "big")[: _HASH_BYTES - KEY_BYTES] + (REFUSED if refused else RECORD)


def known_entries(packs: Iterable[Pack]) -> Entries:
    """The entries of all references of packs, in their order, as of records; `entry` says what each is."""
    packs = list(packs)
    words = np.empty((sum(len(pack.keys) for pack in packs), 2), ">u8")
    first = 0
    for pack in packs:
        described = np.array([_described(*columns) for columns in pack.described()], np.uint64)
        rows = words[first : first + len(pack.keys)]
        rows[:, 0] = pack.keys.digests()[:, 0]
        rows[:, 1] = _state(described, pack.sizes.astype(np.uint64))
        first += len(rows)
    entries = words.view(np.uint8)
    entries[:, -1] = RECORD[0]
    return entries.reshape(-1).view(ENTRY)


def mark_refused(entries: Entries, rows: Sequence[int]) -> None:
    """Makes the entries in some rows those of refused inputs."""
    entries.view(np.uint8).reshape(-1, ENTRY_BYTES)[rows, -1] = REFUSED[0]


def refusal_entry(error: BadRecordError) -> bytes:
    """The entry of an input that was refused before there was a reference to it: of its line in rejects/."""
    return _line_entry(reject_line(error))


def write_known(dataset: Dataset, path: str) -> None:
    """Writes the entries of all shards of a dataset, and of what was refused beside them, into one sorted file.

    Memory holds twice 16 bytes for every input of the dataset.

    Raises:
        CorruptionError: the keys of a shard are damaged.
        OutputError: they are missing.
        StorageError: a file could not be read or written.
    """
    shards = [shard for split in dataset.manifest.splits.values() for shard in split.shards]
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        parts = list(pool.map(functools.partial(_entries, dataset), shards))
    parts.append(np.array(list(_refused(dataset)), ENTRY))
    entries = np.concatenate(parts)
    del parts
    entries.sort()
    with storage_for(path).create(path) as file:
        file.write(entries.view(np.uint8).data)


class Known:
    """The entries of a dataset, to look inputs up in.

    Args:
        entries: S16 [inputs], ascending.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._bytes = entries.view(np.uint8).data

    def standing(self, reference: Reference) -> Standing:
        """What the dataset has of an input."""
        sought = entry(reference)
        found = next(self._from(sought), b"")
        if found[:_HASH_BYTES] == sought[:_HASH_BYTES]:
            return Standing.RECORD if found.endswith(RECORD) else Standing.REFUSED
        for other in self._from(sought[:KEY_BYTES].ljust(ENTRY_BYTES, b"\0")):
            if other[:KEY_BYTES] != sought[:KEY_BYTES]:
                break
            # What was refused in another state may be tried again: the dataset has no record of it.
            if other.endswith(RECORD):
                return Standing.CHANGED
        return Standing.NEW

    def has_refused(self, error: BadRecordError) -> bool:
        """Whether this very refusal is listed in the dataset."""
        sought = refusal_entry(error)
        return next(self._from(sought), b"") == sought

    def _from(self, sought: bytes) -> Iterator[bytes]:
        """The entries from `sought` on, in order."""
        start = int(self._entries.searchsorted(np.frombuffer(sought, ENTRY))[0])
        for number in range(start, len(self._entries)):
            yield bytes(self._bytes[ENTRY_BYTES * number : ENTRY_BYTES * (number + 1)])


@functools.lru_cache(maxsize=1)
def known_in(path: str) -> Known:
    """The entries in a file of `write_known`, read once in a process; every run has a path of its own."""
    storage = storage_for(path)
    with storage.open(path) as file:
        try:
            data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            # No file of this machine.
            data = file.read()
    return Known(np.frombuffer(data, ENTRY))


def _state(described: Any, size: Any) -> Any:
    """A hash of 64 bits of what is known of an input, as integers, or of each of many, as uint64 [n]."""
    state = (described + size) * _GOLDEN & _WORD
    return (state ^ state >> 32) * _GOLDEN & _WORD


@functools.lru_cache(maxsize=4096)
def _described(split: str, labels: tuple[str, ...], form: str, extra: str) -> int:
    # Kept, because it recurs from input to input.
    text = repr((split, labels, form, extra)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=HASH_BITS // 8).digest(), "big")


def _entries(dataset: Dataset, shard: Shard) -> Entries:
    storage = storage_for(dataset.path)
    path = storage.join(dataset.path, keys_name(shard.name))
    if storage.stat(path) is None:
        raise OutputError(
            f"--append: {path} is missing, which says what the shard was made from. Copy it again from where it is, or say"
            " --overwrite to convert everything again."
        )
    keys = ShardKeys.from_bytes(storage.read(path), path)
    keys.check(shard, path, one_to_one=dataset.manifest.is_one_to_one)
    return keys.entries


def _refused(dataset: Dataset) -> Iterator[bytes]:
    for line, entry in listed_refusals(dataset.path, dataset.manifest.rejects):
        yield entry or _line_entry(line)


def _line_entry(line: bytes) -> bytes:
    """The entry of a line in rejects/: by its key and reason where it has a key, for such may come from elsewhere."""
    value = json.loads(line)
    if "key" in value:
        line = repr((value["key"], value["reason"])).encode()
    return hashlib.blake2b(line, digest_size=_HASH_BYTES).digest() + REFUSED
