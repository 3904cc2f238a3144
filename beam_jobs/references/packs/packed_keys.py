"""The keys of a pack of references, in few bytes.

The keys of a million lines of a file are `a.txt:0`, `a.txt:35`, ... A Python string takes 60 bytes, and a worker holds the keys of
all lines of a shard. If each key of a pack ends with a number, they are therefore stored as heads and numbers, and strings are made
on access. Other keys are stored as strings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import collapse, join_columns, narrow, spread
from beam_jobs.references.reference import DIGEST_BYTES, Digests, key_bytes, key_digests, parse_digests

# A number of more digits may not fit int64.
_MAX_DIGITS = 18


@dataclasses.dataclass(frozen=True, eq=False)
class PackedKeys:
    """The keys of some references, in order; iteration makes a string of each.

    Attributes:
        heads: with `numbers`, the part of each key before its number, [n], or [1] if all are equal; otherwise the keys, [n].
        numbers: integers at the end of the keys, [n]; None if a key does not end with one.
    """

    heads: list[str]
    numbers: npt.NDArray[np.integer[Any]] | None

    @classmethod
    def of(cls, keys: Sequence[str]) -> PackedKeys:
        """Pack one or more keys: with `numbers`, if each key ends with an integer, as in `a.txt:17`."""
        tails = [key.rpartition(":")[2] for key in keys]
        try:
            numbers = list(map(int, tails))
        except ValueError:
            return cls(list(keys), numbers=None)
        # int accepts more than str writes: " 7", "007", "1_000".
        if list(map(str, numbers)) != tails or max(map(len, tails)) > _MAX_DIGITS:
            return cls(list(keys), numbers=None)
        # Equal heads share one string.
        shared: dict[str, str] = {}
        heads = [key[: len(key) - len(tail)] for key, tail in zip(keys, tails, strict=True)]
        return cls(collapse([shared.setdefault(head, head) for head in heads]), narrow(numbers))

    @classmethod
    def join(cls, parts: Sequence[PackedKeys]) -> PackedKeys:
        """Return the concatenated keys of all parts."""
        numbers = [part.numbers for part in parts if part.numbers is not None]
        if len(numbers) < len(parts):
            return cls(list(itertools.chain.from_iterable(parts)), numbers=None)
        return cls(join_columns([part.heads for part in parts], list(map(len, parts))), np.concatenate(numbers))

    def digests(self) -> Digests:
        """Return the digests of the keys, see `key_digests`."""
        if self.numbers is None:
            return key_digests(self.heads)
        # Each head is hashed once, which halves the time.
        hashed = {head: hashlib.blake2b(key_bytes(head), digest_size=DIGEST_BYTES) for head in set(self.heads)}
        digest_bytes = []
        for head, number in zip(spread(self.heads, len(self.numbers)), self.numbers.tolist(), strict=True):
            digest = hashed[head].copy()
            digest.update(b"%d" % number)
            digest_bytes.append(digest.digest())
        return parse_digests(digest_bytes)

    def take(self, rows: npt.NDArray[np.intp]) -> PackedKeys:
        """Return the keys of these rows, in the order of `rows`."""
        if self.numbers is None:
            return PackedKeys([self.heads[row] for row in rows.tolist()], numbers=None)
        heads = self.heads if len(self.heads) == 1 else collapse([self.heads[row] for row in rows.tolist()])
        return PackedKeys(heads, self.numbers[rows])

    def __len__(self) -> int:
        # With numbers, all keys may share a single head.
        return len(self.heads if self.numbers is None else self.numbers)

    def __getitem__(self, row: int) -> str:
        """Return the key of a row."""
        if self.numbers is None:
            return self.heads[row]
        # If there is a single head, all rows share it.
        head = self.heads[row] if len(self.heads) > 1 else self.heads[0]
        return f"{head}{self.numbers[row]}"

    def __iter__(self) -> Iterator[str]:
        if self.numbers is None:
            return iter(self.heads)
        heads = spread(self.heads, len(self.numbers))
        return (f"{head}{number}" for head, number in zip(heads, self.numbers.tolist(), strict=True))
