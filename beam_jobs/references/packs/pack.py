"""References in packs: many of them as one element of a PCollection.

A runner takes time, and perhaps memory, for every element. Millions of references therefore travel in packs of a few thousand,
stored by column: numpy handles all of them in one call, and a column of one value (the split, the class of a folder) takes only
that value. Between steps, packs are bytes, some 15 to 40 a reference: the pickled columns, with lists and strings compressed. They
do not outlive a run, so their encoding may change.
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

from beam_jobs.references.packs.columns import collapse, narrow, spread
from beam_jobs.references.packs.pack_columns import COLUMNS, PackColumns, join_fields, split_features
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.record_order import Positions, RecordOrder
from beam_jobs.references.reference import Digests, Reference

PACK_REFERENCES = 4096
# Fastest level of zlib.
_LEVEL = 1


def pack_references(
    references: Iterable[Reference], order: RecordOrder, unit_index: int
) -> Iterator[tuple[Pack, Digests]]:
    """Yield a unit's references in packs of at most 4,096, each with the digests of its keys.

    Args:
        references: references of the whole unit, in order.
        order: order of the records.
        unit_index: index of the unit.
    """
    remaining = iter(references)
    # Index in the unit of the first reference of a batch.
    first_index = 0
    while batch := list(itertools.islice(remaining, PACK_REFERENCES)):
        pack = Pack.of(batch, np.zeros(len(batch), np.uint64))
        digests = pack.keys.digests()
        # Positions come from the low halves of the digests; the high halves decide the splits.
        yield dataclasses.replace(pack, positions=order.positions(digests[:, 1], unit_index, first_index)), digests
        first_index += len(batch)


def repack(parts: Iterable[tuple[Pack, Digests]]) -> Iterator[tuple[Pack, Digests]]:
    """Regroup references into packs of 4,096, each with the digests of its keys; the last may be smaller."""
    pending: list[tuple[Pack, Digests]] = []
    pending_count = 0
    for pack, digests in parts:
        pending.append((pack, digests))
        pending_count += len(digests)
        if pending_count >= PACK_REFERENCES:
            *full_packs, (last_pack, last_digests) = _split_packs(pending)
            # Before the packs are yielded, so that the joined ones are freed.
            pending, pending_count = [(last_pack, last_digests)], len(last_digests)
            yield from full_packs
            if pending_count == PACK_REFERENCES:
                yield last_pack, last_digests
                pending, pending_count = [], 0
    if pending:
        yield from _split_packs(pending)


def _split_packs(parts: Sequence[tuple[Pack, Digests]]) -> list[tuple[Pack, Digests]]:
    """Concatenate packs and split them into packs of 4,096; the last may be smaller."""
    packs, digests = zip(*parts, strict=True)
    all_digests = digests[0] if len(digests) == 1 else np.concatenate(digests)
    split_digests = np.split(all_digests, range(PACK_REFERENCES, len(all_digests), PACK_REFERENCES))
    return list(zip(Pack.join(packs).divide(), split_digests, strict=True))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Pack(PackColumns):
    """One or more references, by column.

    Attributes:
        positions: uint64 [n]: positions in the order, see beam_jobs.references.record_order.
        sizes: integers [n]: sizes in bytes.
        offsets: integers [n], or [1] if all are equal.
        keys: keys of the references.
        root: the string that precedes the key in every path, if each path consists of this string and the key; `paths` is then
            [""]. Otherwise empty.
    """

    positions: Positions
    sizes: npt.NDArray[np.integer[Any]]
    offsets: npt.NDArray[np.integer[Any]]
    keys: PackedKeys
    root: str = ""

    @classmethod
    def of(cls, references: Sequence[Reference], positions: Positions) -> Pack:
        """Pack references and their positions."""
        columns = dict(zip(Reference._fields, map(list, zip(*references, strict=True)), strict=True))
        root = _find_root(columns["path"], columns["key"])
        names, features = split_features(columns["features"])
        return cls(
            positions=positions,
            sizes=narrow(columns["size"]),
            offsets=narrow(collapse(columns["offset"])),
            keys=PackedKeys.of(columns["key"]),
            root=root,
            paths=[""] if root else collapse(columns["path"]),
            splits=collapse(columns["split"]),
            labels=collapse(columns["labels"]),
            payloads=collapse(columns["payload"]),
            crc32s=collapse(columns["crc32"]),
            spools=collapse(columns["spool"]),
            feature_names=names,
            features=features,
        )

    @classmethod
    def from_columns(
        cls,
        keys: PackedKeys,
        sizes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        *,
        paths: list[str],
        **others: Any,
    ) -> Pack:
        """Return a pack of these columns, see `Pack`; positions are 0.

        Offsets, paths and the other columns are shortened to one value if all their values are equal.

        Args:
            keys: keys of the references.
            sizes: sizes in bytes, [n].
            offsets: offset of each reference in its file, [n].
            paths: path of each reference's file, or a single path that all share.
            **others: other columns of `PackColumns` by name, except `features`.
        """
        stored_offsets = offsets[:1] if (offsets == offsets[0]).all() else offsets
        other_columns: dict[str, Any] = {name: collapse(column) for name, column in others.items()}
        # Without numbers, the heads are the keys. Keys with numbers are positions in a file, so no path ends with its key.
        root = _find_root(paths, keys.heads) if keys.numbers is None and len(paths) == len(keys) else ""
        return cls(
            positions=np.zeros(len(keys), np.uint64),
            sizes=narrow(sizes),
            offsets=narrow(stored_offsets),
            keys=keys,
            root=root,
            paths=[""] if root else collapse(paths),
            **other_columns,
        )

    @classmethod
    def join(cls, packs: Sequence[Pack]) -> Pack:
        """Return one pack of the references of all packs, in order."""
        if len(packs) == 1:
            return packs[0]
        # A pack has one root, which begins all its paths. Without a root, paths are whole.
        if len({pack.root for pack in packs}) > 1:
            packs = [dataclasses.replace(pack, root="", paths=pack.list_paths()) for pack in packs]
        lengths = [len(pack.keys) for pack in packs]
        offsets = [pack.offsets for pack in packs]
        has_one_offset = all(len(column) == 1 and column[0] == offsets[0][0] for column in offsets)
        return cls(
            positions=np.concatenate([pack.positions for pack in packs]),
            sizes=np.concatenate([pack.sizes for pack in packs]),
            offsets=offsets[0] if has_one_offset else np.concatenate(list(map(np.broadcast_to, offsets, lengths))),
            keys=PackedKeys.join([pack.keys for pack in packs]),
            root=packs[0].root,
            **join_fields(packs, lengths),
        )

    def take(self, rows: npt.NDArray[np.intp]) -> Pack:
        """Return the references of these rows, in the order of `rows`."""
        return Pack(
            positions=self.positions[rows],
            sizes=self.sizes[rows],
            # A single offset is the offset of every reference.
            offsets=self.offsets if len(self.offsets) == 1 else self.offsets[rows],
            keys=self.keys.take(rows),
            root=self.root,
            **self.take_fields(rows),
        )

    def select_smallest(self, digests: Digests, max_per_split: int, bounds: dict[str, np.uint64]) -> Iterator[Pack]:
        """Yield a pack for each split that has any: at most `max_per_split` references with the smallest digests, as a sample.

        The sample does not depend on the order of the references.

        Args:
            digests: digests of the keys.
            max_per_split: maximum number of references of each split.
            bounds: by split, the largest high half among the `max_per_split` smallest digests of an earlier pack; references whose
                high half is larger are omitted. Set or lowered in place by this pack.
        """
        highs = digests[:, 0]
        for split, rows in self.rows_by_split():
            bound = bounds.get(split)
            if bound is not None:
                rows = rows[highs[rows] <= bound]
            rows = rows[np.argsort(highs[rows], kind="stable")[:max_per_split]]
            if len(rows) == max_per_split:
                bounds[split] = highs[rows[-1]]
            if len(rows):
                yield self.take(rows)

    def keep_keys_and_paths(self) -> Pack:
        """Return the pack with only what reports of repeated keys need: keys, paths and offsets; positions and sizes are 0."""
        zeros = np.zeros(len(self.keys), np.uint8)
        return Pack(
            positions=zeros.astype(np.uint64),
            sizes=zeros,
            offsets=self.offsets,
            keys=self.keys,
            root=self.root,
            paths=self.paths,
        )

    def rows_by_split(self) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
        """Yield each split, sorted by name, and the rows of its references, ascending."""
        if len(self.splits) == 1:
            yield self.splits[0], np.arange(len(self.keys))
            return
        for split in sorted(set(self.splits)):
            yield split, np.flatnonzero([row_split == split for row_split in self.splits])

    def group_by_split(self) -> Iterator[tuple[str, Pack]]:
        """Yield each split, sorted by name, and its references, in order: the pack itself, not a copy, if it has only one split."""
        for split, rows in self.rows_by_split():
            yield split, self if len(rows) == len(self.keys) else self.take(rows)

    def group(self, groups: npt.NDArray[np.intp]) -> Iterator[tuple[int, Pack]]:
        """Yield each distinct number in `groups` [n], ascending, and the references of that group, in order."""
        order = np.argsort(groups, kind="stable")
        # No group is -1, so the first row begins a group.
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        if len(starts) == 1:
            # The pack itself, since a copy of a shard's millions of references takes time and memory.
            yield int(groups[0]), self
            return
        for rows in np.split(order, starts[1:]):
            yield int(groups[rows[0]]), self.take(rows)

    def divide(self) -> Iterator[Pack]:
        """Yield the references, in order, in packs of at most `PACK_REFERENCES`."""
        if len(self.keys) <= PACK_REFERENCES:
            yield self
            return
        for start in range(0, len(self.keys), PACK_REFERENCES):
            yield self.take(np.arange(start, min(start + PACK_REFERENCES, len(self.keys))))

    def list_paths(self) -> list[str]:
        """Return the path of each reference, or a single path that all share."""
        return [self.root + key for key in self.keys] if self.root else self.paths

    def reference(self, row: int) -> Reference:
        """Return the reference of a row."""
        return next(self.take(np.array([row])).references())

    def references(self) -> Iterator[Reference]:
        """Return the references, in order."""
        count = len(self.keys)
        lists = (self.splits, self.labels, self.list_paths(), self.offsets.tolist())
        splits, labels, paths, offsets = (spread(column, count) for column in lists)
        payloads, crc32s, spools = (spread(column, count) for column in (self.payloads, self.crc32s, self.spools))
        features = self.list_feature_rows(count)
        data = itertools.repeat(b"", count)
        columns = (
            self.keys,
            splits,
            labels,
            paths,
            offsets,
            self.sizes.tolist(),
            payloads,
            crc32s,
            features,
            data,
            spools,
        )
        return map(Reference._make, zip(*columns, strict=True))

    def to_bytes(self) -> bytes:
        """Encode the pack as an element of a PCollection."""
        # Only Python's lists and strings are compressed: random positions do not shrink, and other arrays are narrow already.
        keys = self.keys
        columns = [getattr(self, name) for name in COLUMNS]
        lists = pickle.dumps((keys.heads, self.root, columns), protocol=5)
        arrays = (self.positions, self.sizes, self.offsets, keys.numbers)
        return pickle.dumps((*arrays, zlib.compress(lists, _LEVEL)), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Pack:
        """Decode a pack that `to_bytes` encoded."""
        positions, sizes, offsets, numbers, compressed_lists = pickle.loads(data)
        heads, root, columns = pickle.loads(zlib.decompress(compressed_lists))
        return cls(
            positions=positions,
            sizes=sizes,
            offsets=offsets,
            keys=PackedKeys(heads, numbers),
            root=root,
            **dict(zip(COLUMNS, columns, strict=True)),
        )


def _find_root(paths: Sequence[str], keys: Sequence[str]) -> str:
    """Return the string ROOT for which the path of every reference is ROOT and its key; an empty string if there is none."""
    # `removesuffix` returns the whole path if it does not end with the key.
    root = paths[0].removesuffix(keys[0])
    is_shared = root not in ("", paths[0]) and all(path == root + key for path, key in zip(paths, keys, strict=True))
    return root if is_shared else ""
