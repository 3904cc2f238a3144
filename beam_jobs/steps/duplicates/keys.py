"""Rejecting a source with two inputs that have the same key, for conversions in the order of the source.

In a shuffle, records with the same key have one position and so meet in a shard, whose worker finds them. In the order of the
source they may be in any two shards, so references are grouped by key here, only for this check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np

from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference, key_digests
from beam_jobs.steps.global_window import put_in_global_window
from tpudata.errors import SourceError

_GROUP_COUNT = 256
# References that a worker holds back, so that a pack for each group has some hundreds of them.
_MAX_HELD_REFERENCES = 1 << 16


class CheckDuplicates(beam.PTransform):  # type: ignore[misc]
    """Transform that raises SourceError if two references in packs have the same key; the result has no elements."""

    def expand(self, packs: beam.PCollection[bytes]) -> beam.PCollection[InputCounts]:
        """Group references by a hash of their keys, and compare the keys of each group."""
        return packs | "ByKey" >> beam.ParDo(_SplitByKey()) | "Group" >> beam.GroupByKey() | beam.FlatMap(_check)


def make_duplicate_keys_error(first: Reference, other: Reference) -> SourceError:
    """Return the error for two references with the same key."""
    return SourceError(f"{first.origin} and {other.origin} have the same key {first.key!r}. Every input needs its own.")


class _SplitByKey(beam.DoFn):  # type: ignore[misc]
    """DoFn that yields (group, pack) of references grouped by key, and holds them back until the packs are large enough."""

    def start_bundle(self) -> None:
        self._held_packs: list[Pack] = []
        self._held_count = 0

    def process(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Hold back the keys and paths of a pack, and release all packs once they have many references."""
        pack = Pack.from_bytes(data).keep_keys_and_paths()
        self._held_packs.append(pack)
        self._held_count += len(pack.keys)
        if self._held_count >= _MAX_HELD_REFERENCES:
            yield from self._release()

    def finish_bundle(self) -> Iterator[Any]:
        yield from put_in_global_window(self._release())

    def _release(self) -> Iterator[tuple[int, bytes]]:
        """Yield the references held back, a pack for each group of keys, and hold nothing back."""
        batch, self._held_packs, self._held_count = self._held_packs, [], 0
        if batch:
            pack = Pack.join(batch)
            groups = key_digests(pack.keys)[:, 0] % np.uint64(_GROUP_COUNT)
            for group, part in pack.group(groups.astype(np.intp)):
                yield group, part.to_bytes()


def _check(group: tuple[int, Iterable[bytes]]) -> Iterator[InputCounts]:
    """Raise SourceError if two references of a group have the same key; otherwise yield nothing.

    The plan takes the outputs of all steps that count inputs. This step is one of them, so that the plan waits for this check.
    """
    _, packs = group
    first_references: dict[str, Reference] = {}
    for pack in map(Pack.from_bytes, packs):
        for reference in pack.references():
            if reference.key in first_references:
                pair = first_references[reference.key], reference
                raise make_duplicate_keys_error(*sorted(pair, key=lambda repeated: (repeated.path, repeated.offset)))
            first_references[reference.key] = reference
    # This makes the function a generator.
    yield from ()
