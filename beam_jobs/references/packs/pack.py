"""References in packs: many of them as one element of a PCollection.

A runner takes time, and perhaps memory, for every element. Millions of references therefore travel in packs of a few thousand,
stored by column: numpy handles all of them at once, and a column of one value (the split, the class of a folder) takes only that
value. In transit, packs are bytes, some 15 to 40 a reference: the pickled columns, compressed. They exist only between the steps of
one run, so their form may change.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import joined_columns, narrow, shortest, spread
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.record_order import Order, Positions
from beam_jobs.references.reference import Digests, Reference

PACK_REFERENCES = 4096
_LEVEL = 1


def packs(references: Iterable[Reference], order: Order, unit: int) -> Iterator[tuple[Pack, Digests]]:
    """Yield the references that a unit lists in packs of at most 4,096, each with the digests of its keys.

    Args:
        references: references of the whole unit, in order.
        order: order of the records.
        unit: number of the unit.
    """
    rest, first = iter(references), 0
    while batch := list(itertools.islice(rest, PACK_REFERENCES)):
        pack = Pack.of(batch, np.zeros(len(batch), np.uint64))
        digests = pack.keys.digests()
        yield dataclasses.replace(pack, positions=order.positions(digests[:, 1], unit, first)), digests
        first += len(batch)


@dataclasses.dataclass(frozen=True, eq=False)
class Pack:
    """One or more references, by column.

    Attributes:
        positions: uint64 [n]: positions in the order, see beam_jobs.references.record_order.
        sizes: integers [n]: sizes in bytes.
        offsets: integers [n], or [1] if one value stands for all.
        keys: keys of the references.
        root: prefix of the key in every path; empty without a common one.
        others: paths (empty with a `root`), splits, labels, forms, extras and spools: each a list of n, or of one value that
            stands for all.
    """

    positions: Positions
    sizes: npt.NDArray[np.integer[Any]]
    offsets: npt.NDArray[np.integer[Any]]
    keys: PackedKeys
    root: str
    others: tuple[list[Any], ...]

    @classmethod
    def of(cls, references: Sequence[Reference], positions: Positions) -> Pack:
        """Pack references and their positions."""
        keys, splits, labels, paths, offsets, sizes, forms, extras, _, spools = map(list, zip(*references, strict=True))
        root = _root(paths, keys)
        columns = tuple(map(shortest, ([""] if root else paths, splits, labels, forms, extras, spools)))
        return cls(positions, narrow(sizes), narrow(shortest(offsets)), PackedKeys.of(keys), root, columns)

    @classmethod
    def of_columns(
        cls,
        keys: PackedKeys,
        sizes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        others: tuple[list[Any], ...],
    ) -> Pack:
        """Return a pack of these columns, see `Pack`; positions are 0."""
        same = offsets[:1] if (offsets == offsets[0]).all() else offsets
        paths, *rest = others
        root = _root(paths, keys.heads) if keys.numbers is None and len(paths) == len(keys) else ""
        columns = tuple(map(shortest, ([""] if root else paths, *rest)))
        return cls(np.zeros(len(keys), np.uint64), narrow(sizes), narrow(same), keys, root, columns)

    @classmethod
    def joined(cls, packs: Sequence[Pack]) -> Pack:
        """Return the concatenated references of packs."""
        if len(packs) == 1:
            return packs[0]
        one_root = len({pack.root for pack in packs}) == 1
        others = [pack.others if one_root else (pack.paths(), *pack.others[1:]) for pack in packs]
        lengths = [len(pack.keys) for pack in packs]
        offsets = [pack.offsets for pack in packs]
        one_offset = all(len(some) == 1 and some[0] == offsets[0][0] for some in offsets)
        return cls(
            np.concatenate([pack.positions for pack in packs]),
            np.concatenate([pack.sizes for pack in packs]),
            offsets[0] if one_offset else np.concatenate(list(map(np.broadcast_to, offsets, lengths))),
            PackedKeys.joined([pack.keys for pack in packs]),
            packs[0].root if one_root else "",
            tuple(joined_columns(columns, lengths) for columns in zip(*others, strict=True)),
        )

    def take(self, rows: npt.NDArray[np.intp]) -> Pack:
        """Return the references of these rows, in the order of `rows`."""
        places = rows.tolist() if any(len(column) > 1 for column in self.others) else []
        return Pack(
            self.positions[rows],
            self.sizes[rows],
            self.offsets if len(self.offsets) == 1 else self.offsets[rows],
            self.keys.take(rows),
            self.root,
            tuple(column if len(column) == 1 else [column[place] for place in places] for column in self.others),
        )

    def smallest(self, digests: Digests, count: int, bounds: dict[str, np.uint64]) -> Iterator[Pack]:
        """Yield the `count` references of each split whose keys have the smallest digests: the same in any order.

        Args:
            digests: digests of the keys.
            count: number of references of each split.
            bounds: by split, the largest high half among the `count` smallest digests of an earlier pack, above which no reference
                counts; updated.
        """
        highs = digests[:, 0]
        for split, rows in self.split_rows():
            bound = bounds.get(split)
            if bound is not None:
                rows = rows[highs[rows] <= bound]
            rows = rows[np.argsort(highs[rows], kind="stable")[:count]]
            if len(rows) == count:
                bounds[split] = highs[rows[-1]]
            if len(rows):
                yield self.take(rows)

    def without_contents(self) -> Pack:
        """Return the same keys and places; the other columns are empty, and take a byte or two a reference."""
        paths, empty = self.others[0], np.zeros(len(self.keys), np.uint8)
        return Pack(
            empty.astype(np.uint64), empty, self.offsets, self.keys, self.root, (paths, [""], [()], [""], [""], [""])
        )

    def split_rows(self) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
        """Yield each split, and the rows of its references."""
        _, splits, *_ = self.others
        if len(splits) == 1:
            yield splits[0], np.arange(len(self.keys))
            return
        for split in sorted(set(splits)):
            yield split, np.flatnonzero([value == split for value in splits])

    def by_split(self) -> Iterator[tuple[str, Pack]]:
        """Yield the references of each split, in their order."""
        for split, rows in self.split_rows():
            yield split, self if len(rows) == len(self.keys) else self.take(rows)

    def grouped(self, groups: npt.NDArray[np.intp]) -> Iterator[tuple[int, Pack]]:
        """Yield each distinct number in `groups` [n], ascending, and its references, in order."""
        order = np.argsort(groups, kind="stable")
        first = np.flatnonzero(np.diff(groups[order], prepend=-1))
        if len(first) == 1:
            # No copy: a shard may have millions.
            yield int(groups[0]), self
            return
        for rows in np.split(order, first[1:]):
            yield int(groups[rows[0]]), self.take(rows)

    def in_parts(self) -> Iterator[Pack]:
        """Yield the references, in order, in packs of at most 4,096."""
        for start in range(0, len(self.keys), PACK_REFERENCES):
            yield self.take(np.arange(start, min(start + PACK_REFERENCES, len(self.keys))))

    def paths(self) -> list[str]:
        """Return the path of each reference, or one path that stands for all."""
        return [self.root + key for key in self.keys] if self.root else self.others[0]

    def forms(self) -> list[str]:
        """Return the form of each reference, or one that stands for all."""
        _, _, _, forms, _, _ = self.others
        return forms

    def reference(self, row: int) -> Reference:
        """Return the reference of a row."""
        return next(self.take(np.array([row])).references())

    def classes(self) -> dict[str, set[str]]:
        """Return the names of the classes that references have, by split; splits without any are not there."""
        _, splits, labels, *_ = self.others
        if labels == [()]:
            return {}
        count = max(len(splits), len(labels))
        found: dict[str, set[str]] = {}
        for split, names in zip(spread(splits, count), spread(labels, count), strict=True):
            if names:
                found.setdefault(split, set()).update(names)
        return found

    def described(self) -> list[tuple[str, tuple[str, ...], str, str]]:
        """Split, labels, form and extra of each reference, or one tuple of them that stands for all."""
        _, *columns, _ = self.others
        count = max(map(len, columns))
        return list(zip(*(spread(column, count) for column in columns), strict=True))

    def references(self) -> Iterator[Reference]:
        """Return the references, in order."""
        count = len(self.keys)
        paths = spread(self.paths(), count)
        splits, labels, forms, extras, spools = (spread(column, count) for column in self.others[1:])
        offsets = spread(self.offsets.tolist(), count)
        data = itertools.repeat(b"", count)
        columns = (self.keys, splits, labels, paths, offsets, self.sizes.tolist(), forms, extras, data, spools)
        return map(Reference._make, zip(*columns, strict=True))

    def to_bytes(self) -> bytes:
        """Return the pack as an element of a PCollection."""
        # Random positions do not compress, and other numbers are narrow already.
        keys = self.keys
        texts = zlib.compress(pickle.dumps((keys.heads, self.root, self.others), protocol=5), _LEVEL)
        return pickle.dumps((self.positions, self.sizes, self.offsets, keys.numbers, texts), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Pack:
        """Return the pack that `to_bytes` wrote."""
        positions, sizes, offsets, numbers, texts = pickle.loads(data)
        heads, root, others = pickle.loads(zlib.decompress(texts))
        return cls(positions, sizes, offsets, PackedKeys(heads, numbers), root, others)


def _root(paths: Sequence[str], keys: Sequence[str]) -> str:
    """Return the prefix of the key in every path; empty if there is no common one."""
    root = paths[0].removesuffix(keys[0])
    is_one = root not in ("", paths[0]) and all(path == root + key for path, key in zip(paths, keys, strict=True))
    return root if is_one else ""
