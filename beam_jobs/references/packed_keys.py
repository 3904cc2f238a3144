"""The keys of a pack of references, in few bytes.

Of a million lines of a file the keys are `a.txt:0`, `a.txt:35`, ... A Python string of each would take 60 bytes, and there are
as many at once as a shard has lines. Where all keys of a pack end with a number, they are kept as heads and numbers, and a string
is made of one when it is asked for. Other keys are kept as strings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.columns import joined_columns, narrow, shortest, spread
from beam_jobs.references.reference import DIGEST_BYTES, Digests, as_digests, key_bytes, key_digests

# More digits may not fit int64.
_MOST_DIGITS = 18


@dataclasses.dataclass(frozen=True, eq=False)
class PackedKeys:
    """The keys of some references, in order; iterating over it makes a string of each.

    Attributes:
        heads: of each key what is before its number, or the whole key if there are no numbers: a list of n, or next to numbers
            of one value that stands for all.
        numbers: integers [n], or None.
    """

    heads: list[str]
    numbers: npt.NDArray[np.integer[Any]] | None

    @classmethod
    def of(cls, keys: Sequence[str]) -> PackedKeys:
        """Pack keys, one at least."""
        tails = [key.rpartition(":")[2] for key in keys]
        try:
            numbers = list(map(int, tails))
        except ValueError:
            return cls(list(keys), None)
        # What int takes is not always written as str writes it: " 7", "007", "1_000".
        if list(map(str, numbers)) != tails or max(map(len, tails)) > _MOST_DIGITS:
            return cls(list(keys), None)
        # One string for all that are equal.
        known: dict[str, str] = {}
        heads = [key[: len(key) - len(tail)] for key, tail in zip(keys, tails, strict=True)]
        return cls(shortest([known.setdefault(head, head) for head in heads]), narrow(numbers))

    @classmethod
    def joined(cls, parts: Sequence[PackedKeys]) -> PackedKeys:
        """Return the keys of all parts, one after the other."""
        numbers = [part.numbers for part in parts if part.numbers is not None]
        if len(numbers) < len(parts):
            return cls(list(itertools.chain.from_iterable(parts)), None)
        return cls(joined_columns([part.heads for part in parts], list(map(len, parts))), np.concatenate(numbers))

    def digests(self) -> Digests:
        """Return the digests of the keys, see `key_digests`."""
        if self.numbers is None:
            return key_digests(self.heads)
        # Each head is hashed once: half the time.
        hashed = {head: hashlib.blake2b(key_bytes(head), digest_size=DIGEST_BYTES) for head in set(self.heads)}
        found = []
        for head, number in zip(spread(self.heads, len(self.numbers)), self.numbers.tolist(), strict=True):
            digest = hashed[head].copy()
            digest.update(b"%d" % number)
            found.append(digest.digest())
        return as_digests(found)

    def take(self, rows: npt.NDArray[np.intp]) -> PackedKeys:
        """Return the keys of these rows, in the order of `rows`."""
        heads = self.heads
        if self.numbers is None or len(heads) > 1:
            heads = [heads[row] for row in rows.tolist()]
        return PackedKeys(heads, None if self.numbers is None else self.numbers[rows])

    def __len__(self) -> int:
        return len(self.heads if self.numbers is None else self.numbers)

    def __getitem__(self, row: int) -> str:
        if self.numbers is None:
            return self.heads[row]
        return f"{self.heads[row if len(self.heads) > 1 else 0]}{self.numbers[row]}"

    def __iter__(self) -> Iterator[str]:
        if self.numbers is None:
            return iter(self.heads)
        heads = spread(self.heads, len(self.numbers))
        return (f"{head}{number}" for head, number in zip(heads, self.numbers.tolist(), strict=True))
