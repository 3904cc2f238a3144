"""The second step: from a source's units to packs of references, and aside what is known of them all."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, TypeAlias

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import TaggedOutput

from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.output.rejects import Rejects
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.sample import SAMPLE_SIZE
from beam_jobs.planning.tally import TallyPart
from beam_jobs.references.pack import Pack, packs
from beam_jobs.references.reference import Reference
from beam_jobs.sources import Source
from tpudata.errors import BadRecordError
from tpudata.storage import storage_for
from tpudata.storage.local import TEMPORARY_PREFIX

# Names of the outputs besides the packs. Of each pack: a TallyPart, the class names, and a sample of its references. Of some units:
# InputCounts.
TALLY, NAMES, SAMPLE, COUNTS = "tally", "names", "sample", "counts"


TextBytes: TypeAlias = Callable[[Pack], npt.NDArray[np.int64]]


class ListReferences(beam.DoFn):  # type: ignore[misc]
    """Yields packs of references to the records of some units, and aside the outputs named above.

    Records of a compressed stream have no address. Their bytes are written aside into a temporary file of the output folder,
    one a unit, and referred to there, so that bytes never travel through the runner; the last step removes these files.

    Args:
        source: lists the units.
        options: of the conversion.
        text_bytes: of a pack, the bytes of the texts that each record will hold besides its content: int64 [n].
    """

    def __init__(self, source: Source, options: ConvertOptions, text_bytes: TextBytes) -> None:
        super().__init__()
        self._source = source
        self._options = options
        self._text_bytes = text_bytes

    def process(self, units: Sequence[tuple[int, Any]]) -> Iterator[Any]:
        """List some units, each given with its number among all."""
        if self._options.shuffle:
            # Small units, such as folders of a few files, share packs: a pack costs half a millisecond.
            yield from self._listed(0, [unit for _, unit in units])
            return
        for number, unit in units:
            # Here a record's place is its number in its unit.
            yield from self._listed(number, [unit])

    def _listed(self, number: int, units: Sequence[Any]) -> Iterator[Any]:
        counts: list[InputCounts] = []
        references = itertools.chain.from_iterable(self._references(unit, counts) for unit in units)
        for pack, digests in packs(references, self._options.order, number):
            yield pack.to_bytes()
            texts = self._text_bytes(pack)
            yield TaggedOutput(TALLY, TallyPart.of(pack, digests, shuffled=self._options.shuffle, texts=texts))
            for part in pack.smallest(digests, SAMPLE_SIZE):
                yield TaggedOutput(SAMPLE, part.to_bytes())
            yield TaggedOutput(NAMES, pack.labels())
        yield TaggedOutput(COUNTS, InputCounts.sum(counts))

    def _references(self, unit: Any, counts: list[InputCounts]) -> Iterator[Reference]:
        """Yield the references of a unit, and add what is counted of it to `counts`."""
        name = hashlib.blake2b(repr(unit).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        ignored: list[str] = []
        rejects = Rejects(f"listing-{name}")

        def refuse(error: BadRecordError) -> None:
            if self._options.on_bad_record != SKIP:
                raise error
            rejects.add(error)

        with ExitStack() as stack:
            yield from self._spooled(self._source.references(unit, ignored, refuse), name, stack)
        if self._options.on_bad_record == SKIP:
            rejects.write(self._options.output)
        counts.append(InputCounts(len(ignored), rejects.counts()))

    def _spooled(self, references: Iterable[Reference], name: str, stack: ExitStack) -> Iterator[Reference]:
        """Return the references, those with inline data replaced by such to a spool file that is complete when `stack` closes."""
        storage = storage_for(self._options.output)
        path = storage.join(self._options.output, f"{TEMPORARY_PREFIX}spool-{name}")
        spool: BinaryIO | None = None
        offset = 0
        for reference in references:
            if not reference.data:
                yield reference
                continue
            spool = spool or stack.enter_context(storage.create(path))
            spool.write(reference.data)
            size = len(reference.data)
            yield reference._replace(spool=path, offset=offset, size=size, data=b"")
            offset += size
