"""Conversion of one shard's inputs, one by one and in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from beam_jobs.converter import Converter, Input, Record, ShardContext
from beam_jobs.output.rejects import Rejects
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference
from beam_jobs.run.progress import ProgressReport
from tpudata.errors import BadRecordError


class ShardConversion:
    """Reading and conversion of a shard's inputs; its counts are complete once the records have ended.

    Args:
        name: the shard's file name.
        packs: references to its inputs, in order.
        converter: converter that makes the records.
        context: facts about all inputs.
        skips_bad_inputs: whether bad inputs are rejected; otherwise the first one ends the run.
        progress: gets the bytes of each input.

    Attributes:
        summary: counts of the converter.
        rejects: the rejected inputs, in their order.
        rejected_rows: indices of the rejected inputs among the shard's inputs.
        bytes_read: bytes of the inputs that could be read.
        record_count: number of records so far.
    """

    def __init__(
        self,
        name: str,
        packs: Sequence[Pack],
        converter: Converter,
        context: ShardContext,
        *,
        skips_bad_inputs: bool,
        progress: ProgressReport,
    ) -> None:
        self.summary = converter.new_summary()
        self.rejects = Rejects(name)
        self.rejected_rows: list[int] = []
        self.bytes_read = 0
        self.record_count = 0
        self._packs = packs
        self._converter = converter
        self._context = context
        self._skips_bad_inputs = skips_bad_inputs
        self._progress = progress
        self._errors_by_key: dict[str, BadRecordError] = {}

    def records(self) -> Iterator[Record]:
        """Yield the records of the shard; at their end, list the rejected inputs and report the progress.

        Raises:
            BadRecordError: an input is bad, and bad inputs are not skipped.
        """
        for record in self._converter.records(self._read_inputs(), self._context, self.summary, self._reject):
            self.record_count += 1
            yield record
        self._collect_rejects()
        self._progress.flush()

    def _read_inputs(self) -> Iterator[Input]:
        """Yield the readable inputs with their bytes, and count these; reject the inputs that cannot be read."""
        for reference, data in self._converter.read(self._packs):
            if isinstance(data, BadRecordError):
                self._reject(reference, data)
                continue
            self.bytes_read += len(data)
            self._progress.add_record(len(data))
            yield reference, data

    def _reject(self, reference: Reference, error: BadRecordError) -> None:
        """Raise the error of a bad input, or keep it for `_collect_rejects` if bad inputs are skipped."""
        if not self._skips_bad_inputs:
            raise error
        self._errors_by_key[reference.key] = error

    def _collect_rejects(self) -> None:
        """Add the rejected inputs to `rejects` and their rows to `rejected_rows`, in the order of the inputs.

        A converter may reject an input after it has read others, and several at a time.
        """
        if not self._errors_by_key:
            return
        for row, key in enumerate(itertools.chain.from_iterable(pack.keys for pack in self._packs)):
            if key in self._errors_by_key:
                self.rejects.add(self._errors_by_key[key])
                self.rejected_rows.append(row)
