"""The second step: from a source's units to packs of references, with counts and samples of them as side outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import TaggedOutput

from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.output.rejects import Rejects
from beam_jobs.output.spool_file import SpoolFile
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.sample import SAMPLE_SIZE
from beam_jobs.planning.tally import TallyPart
from beam_jobs.references.notes import Notes
from beam_jobs.references.packs.pack import Pack, pack_references, repack
from beam_jobs.references.reference import Digests, Reference
from beam_jobs.references.rejection import Reject
from beam_jobs.run.progress import ProgressReport
from beam_jobs.sources import Source
from beam_jobs.sources.installed.source_checks import list_references
from beam_jobs.sources.source import PackSource, SourceUnit
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from tpudata.errors import BadRecordError
from tpudata.storage import storage_for
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

# Names of the side outputs: for each pack a TallyPart, the class names and a sample of its references; for each call of `_list`
# the InputCounts.
TALLY, NAMES, SAMPLE, COUNTS = "tally", "names", "sample", "counts"


# Function from a pack to the approximate bytes that each record takes besides its content, such as names: int64 [n].
ExtraBytes: TypeAlias = Callable[[Pack], npt.NDArray[np.int64]]


class ListReferences(LimitedStep):
    """DoFn that yields packs of references to the records of some units, and the side outputs named above.

    Records of a compressed stream have no address. Their bytes are spooled to a temporary file in the output folder, one for each
    unit, and references point there, so that bytes never travel through the runner; the last step removes these files.

    Args:
        source: source of the units.
        options: options of the conversion.
        extra_bytes: see `ExtraBytes`.
        progress: gets the counts of listed inputs; None reports nothing.
    """

    def __init__(
        self, source: Source, options: ConvertOptions, extra_bytes: ExtraBytes, progress: ProgressReport | None = None
    ) -> None:
        super().__init__(options.request_limits)
        self._source = source
        self._options = options
        self._extra_bytes = extra_bytes
        self._progress = progress or ProgressReport(folder=None)

    @holds_limits
    def process(self, units: Sequence[tuple[int, SourceUnit]], source: Source | None = None) -> Iterator[Any]:
        """List some units.

        Args:
            units: units, each with its index among all units.
            source: the source with its schema, if the pipeline finds the schema; None keeps the source of the step.
        """
        if source is not None:
            self._source = source
        if self._options.shuffle:
            # Small units, such as folders of a few files, share packs: a pack costs half a millisecond.
            yield from self._list(unit_index=0, units=[unit for _, unit in units])
            return
        for unit_index, unit in units:
            # Without a shuffle, the position of a record depends on its index in its unit.
            yield from self._list(unit_index, [unit])

    def _list(self, unit_index: int, units: Sequence[SourceUnit]) -> Iterator[Any]:
        """Yield the packs of units that are listed together, and as side outputs their tallies, samples, class names and counts.

        Args:
            unit_index: index of the only unit among all units; 0 in a shuffle, which does not use it.
            units: the units.
        """
        # `_group_packs` adds the counts of each unit, and the loop below adds the classes of each pack.
        counts: list[InputCounts] = []
        sample_bounds: dict[str, np.uint64] = {}
        for pack, digests in self._group_packs(unit_index, units, counts):
            yield pack.to_bytes()
            extra_bytes = self._extra_bytes(pack)
            yield TaggedOutput(
                TALLY, TallyPart.from_pack(pack, digests, is_shuffled=self._options.shuffle, extra_bytes=extra_bytes)
            )
            for part in pack.select_smallest(digests, SAMPLE_SIZE, sample_bounds):
                yield TaggedOutput(SAMPLE, part.to_bytes())
            classes = pack.classes()
            yield TaggedOutput(NAMES, set[str]().union(*classes.values()))
            counts.append(InputCounts(classes=classes))
            self._progress.add_listed(len(pack.keys), int(pack.sizes.sum()))
        self._progress.flush_listed()
        yield TaggedOutput(COUNTS, InputCounts.sum(counts))

    def _group_packs(
        self, unit_index: int, units: Sequence[SourceUnit], counts: list[InputCounts]
    ) -> Iterator[tuple[Pack, Digests]]:
        """Yield the references of units in packs, with the digests of their keys; append the counts of each unit to `counts`."""
        order, source = self._options.order, self._source
        if not isinstance(source, PackSource):
            references = itertools.chain.from_iterable(self._list_references(unit, counts) for unit in units)
            yield from pack_references(references, order, unit_index)
            return
        listed = self._list_packs(source, unit_index, units, counts)
        # The packs of a source with `has_own_packs` stay unchanged; others are regrouped into packs of 4,096.
        yield from listed if source.has_own_packs else repack(listed)

    def _list_packs(
        self, source: PackSource, unit_index: int, units: Sequence[SourceUnit], counts: list[InputCounts]
    ) -> Iterator[tuple[Pack, Digests]]:
        """Yield the packs that a source makes itself, with the digests of their keys; bytes that they hold go to the spool.

        Args:
            source: source that makes the packs.
            unit_index: index of the only unit among all units; 0 in a shuffle, which does not use it.
            units: the units to list.
            counts: list to which the InputCounts of each unit are appended.
        """
        order = self._options.order
        first_index = 0
        for unit in units:
            with self._open_unit(unit, counts) as listing:
                noting_source = source.noting(listing.notes.add)
                for listed in noting_source.packs(unit, listing.ignored, listing.reject):
                    spool_offset = listing.spool.write(listed.join_held())
                    pack = listed.point_into_file(listing.spool.path, spool_offset)
                    positions = order.positions(listed.digests[:, 1], unit_index, first_index)
                    yield dataclasses.replace(pack, positions=positions), listed.digests
                    first_index += len(pack.keys)

    def _list_references(self, unit: SourceUnit, counts: list[InputCounts]) -> Iterator[Reference]:
        """Yield the references of a unit; write the bytes that a reference holds to the spool, and make it point there."""
        with self._open_unit(unit, counts) as listing:
            noting_source = self._source.noting(listing.notes.add)
            for reference in list_references(noting_source, unit, listing.ignored, listing.reject):
                if not reference.data:
                    yield reference
                    continue
                spool_offset = listing.spool.write(reference.data)
                size = len(reference.data)
                yield reference._replace(spool=listing.spool.path, offset=spool_offset, size=size, data=b"")

    @contextlib.contextmanager
    def _open_unit(self, unit: SourceUnit, counts: list[InputCounts]) -> Iterator[_ListingSink]:
        """Yield the sink of a unit's listing; after the listing, write its rejects, and add its InputCounts to `counts`."""
        # The same name in each attempt, so that a retry replaces the files.
        name = hashlib.blake2b(repr(unit).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        rejects = Rejects(f"listing-{name}")

        def reject(error: BadRecordError) -> None:
            if self._options.on_bad_record != SKIP:
                raise error
            rejects.add(error)

        storage = storage_for(self._options.output)
        ignored: list[str] = []
        notes = Notes()
        path = storage.join(self._options.output, f"{TEMPORARY_PREFIX}spool-{name}")
        with SpoolFile(path) as spool:
            yield _ListingSink(ignored, reject, spool, notes)
        if self._options.on_bad_record == SKIP:
            rejects.write(self._options.output)
        counts.append(InputCounts(len(ignored), rejects.counts(), notes=notes))


class _ListingSink(NamedTuple):
    """Sink for the outputs of a unit's listing that are not references.

    Attributes:
        ignored: paths of ignored files.
        reject: takes the error of a rejected record.
        spool: takes the bytes of records without an address.
        notes: takes the notes of the source: facts about the input that become warnings.
    """

    ignored: list[str]
    reject: Reject
    spool: SpoolFile
    notes: Notes
