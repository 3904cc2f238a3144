"""References in packs: many of them as one element of a PCollection.

A runner pays for every element, in time and, where it keeps elements in memory, in space. Millions of references therefore
travel in packs of a few thousand: a pack is the zlib-compressed pickle of a list of plain tuples, some 40 bytes a reference.
Packs live only between the steps of one run, so their form is nobody else's business.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.reference import Reference

_PACK_REFERENCES = 4096
_LEVEL = 1


def batches(references: Iterable[Reference]) -> Iterator[list[Reference]]:
    """The references, in order, in lists of at most 4,096."""
    rest = iter(references)
    while batch := list(itertools.islice(rest, _PACK_REFERENCES)):
        yield batch


def pack(batch: Sequence[Reference]) -> bytes:
    """One pack."""
    return zlib.compress(pickle.dumps([tuple(reference) for reference in batch], protocol=5), _LEVEL)


def unpack(data: bytes) -> Iterator[Reference]:
    """The references of a pack."""
    return map(Reference._make, pickle.loads(zlib.decompress(data)))
