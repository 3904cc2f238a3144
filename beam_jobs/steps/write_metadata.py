"""The last step: from the results of all shards to the metadata and the manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.converter import Converter, ShardContext, Summary
from beam_jobs.output.folder import equals_stored_manifest, reject_another_run
from beam_jobs.output.rejects import list_listing_rejects
from beam_jobs.output.removal import remove_temporary_files
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.plan import Plan
from beam_jobs.references.labels import Labels
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from beam_jobs.steps.shards.write_shards import ShardResult
from tpudata._version import __version__
from tpudata.console.tables import count_text
from tpudata.errors import OutputError, SourceError
from tpudata.format import Manifest, Shard, Source, Split, open_dataset, write_metadata
from tpudata.format.layout import REJECTS_FOLDER
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for
from tpudata.storage.claims.claim import PROCESS, has_claim
from tpudata.storage.claims.hold import check_claim, drop_claim


class _Totals(NamedTuple):
    """Results of all shards together.

    Attributes:
        summary: the converter's summary of all records.
        shards: shards of each split, in the order of their names.
        decoded_bytes: bytes of each split's records as tensors.
        rejected: number of rejected inputs by kind, including those that the listing rejected.
        converted: number of re-encoded inputs, by reason.
        files: the shards and their other files.
    """

    summary: Summary
    shards: dict[str, list[Shard]]
    decoded_bytes: dict[str, int]
    rejected: Counter[str]
    converted: Counter[str]
    files: list[WrittenFile]


class WriteMetadata(LimitedStep):
    """Step that writes the files next to the shards, the manifest last, from all ShardResults.

    Runs inside the pipeline, so that a dataset is completed even if the process that started the job has ended.

    Args:
        spec: the dataset to write. A claim of a job or of a pipeline ends here.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec.options.request_limits)
        self._spec = spec
        self._claim = spec.claim
        self._options = spec.options
        self._base = spec.base

    @holds_limits
    def process(
        self,
        impulse: bytes,
        results: Iterable[tuple[Any, ...]],
        plan: Plan,
        context: ShardContext,
        input_counts: InputCounts,
    ) -> Iterator[Manifest]:
        """Write the metadata of one dataset, and yield its manifest.

        Args:
            impulse: the one element that starts the step.
            results: the ShardResult of every shard, as a tuple.
            plan: plan of the shards.
            context: facts about all inputs, as the converter got them.
            input_counts: counts of inputs that are in no shard: ignored, rejected by the listing, or duplicates.

        Raises:
            SourceError: there is no record, or too many inputs were rejected.
            OutputError: another run has claimed the folder or written to it.
        """
        del impulse
        converter = self._spec.converter.apply_context(context)
        totals = _add_up(results, converter, plan, input_counts)
        self._check_rejected(totals.rejected, plan.input_count + sum(input_counts.rejected.values()))
        labels = context.labels
        if not any(totals.shards.values()):
            if self._base is None:
                # Only text can yield no record without a reject.
                raise SourceError(
                    f"{self._options.input}: no record in {count_text(plan.input_count, 'input')}. Pass an input that holds text."
                )
            # An append without records adds no classes.
            labels = Labels(self._base.labels or ())
        class_names = labels.names if self._spec.has_classes and labels.names else None
        manifest = Manifest(
            layout=self._spec.layout,
            compression=self._options.compression,
            splits={
                name: Split(tuple(shards), totals.decoded_bytes[name])
                for name, shards in sorted(totals.shards.items())
                if shards
            },
            features=converter.features(totals.summary, labels),
            source=Source(
                self._options.input, plan.input_count, plan.bytes, plan.fingerprint, input_counts.ignored_count
            ),
            created_by=f"tpudata {__version__}",
            labels=None if class_names is None else len(class_names),
            rejected=dict(sorted(totals.rejected.items())),
            options={**self._spec.deciding_options, **converter.manifest_options(context)},
            rejects=list_listing_rejects(self._options.output),
            keys=self._spec.stores_keys,
            converted=dict(sorted(totals.converted.items())),
            counts=_count_inputs(converter, totals, input_counts),
            dali_index=self._options.dali_index,
            maxima=dict(sorted(converter.maxima(totals.summary).items())),
            warnings={**plan.warnings, **converter.warnings(totals.summary)},
        )
        adds_inputs = bool(manifest.splits or manifest.rejected)
        if self._base is not None:
            manifest = self._base.merge(manifest) if adds_inputs else self._base.manifest
        # An earlier attempt at this step may have completed the dataset.
        if not self._is_complete(manifest):
            check_claim(self._options.output, self._claim)
            remove_temporary_files(self._options.output)
            if self._base is None or adds_inputs:
                manifest = self._write(manifest, class_names, totals.files, converter, context)
            self._drop_claim()
        yield manifest

    def _write(
        self,
        manifest: Manifest,
        class_names: Sequence[str] | None,
        shard_files: Sequence[WrittenFile],
        converter: Converter,
        context: ShardContext,
    ) -> Manifest:
        """Write the converter's files, the metadata and the manifest, and return the manifest as it was written.

        Args:
            manifest: manifest of the whole dataset, without the fields that `write_metadata` sets.
            class_names: names for labels.txt; None without classes.
            shard_files: the shards and their other files, as they were written.
            converter: converter of the records.
            context: facts about all inputs, as the converter got them.

        Raises:
            OutputError: another run has claimed the folder or written to it.
        """
        output = self._options.output
        written_files = list(shard_files)
        if self._base is None:
            reject_another_run(output, manifest)
        else:
            self._reject_another_append(self._base.manifest, manifest)
        written_files += self._write_files(converter.files(context))
        if self._base is not None:
            # `write_metadata` compares all written files with the folder; the manifest also lists the shards of the base.
            base_shards = (shard for split in self._base.manifest.splits.values() for shard in split.shards)
            written_files += (WrittenFile(shard.name, shard.bytes, shard.crc32c) for shard in base_shards)
        check_claim(output, self._claim)
        return write_metadata(output, manifest, class_names, written_files)

    def _is_complete(self, manifest: Manifest) -> bool:
        """Return whether an earlier attempt at this step completed the dataset, and so dropped the claim; False without a claim."""
        output = self._options.output
        if self._claim is None or has_claim(output, self._claim):
            return False
        storage = storage_for(output)
        if storage.stat(storage.join(output, MANIFEST_NAME)) is None:
            return False
        return equals_stored_manifest(manifest, open_dataset(output).manifest)

    def _drop_claim(self) -> None:
        """Remove the claim, unless it ends with the process that started the run."""
        if self._claim is not None and self._claim.ends_with != PROCESS:
            drop_claim(self._options.output, self._claim)

    def _write_files(self, files: Mapping[str, bytes]) -> list[WrittenFile]:
        """Write files into the output, and return them as written; `files` has the content of each by name."""
        storage = storage_for(self._options.output)
        for name, data in files.items():
            with storage.create(storage.join(self._options.output, name)) as file:
                file.write(data)
        return [WrittenFile.of(*file) for file in files.items()]

    def _reject_another_append(self, before: Manifest, after: Manifest) -> None:
        """Raise OutputError if the manifest in the folder is neither `before`, nor `after`, which a retry finds."""
        stored_manifest = open_dataset(self._options.output).manifest
        if not (equals_stored_manifest(before, stored_manifest) or equals_stored_manifest(after, stored_manifest)):
            raise OutputError(
                f"--append: another job has changed {self._options.output} since this one began, and may have written shards of the"
                " same names. `tpudata verify` says whether it is whole. Run one job at a time."
            )

    def _check_rejected(self, rejected: Counter[str], input_count: int) -> None:
        """Raise SourceError if more of the inputs were rejected than allowed, or all inputs of a new dataset."""
        options = self._options
        rejected_count = rejected.total()
        kinds = ", ".join(f"{number} {kind}" for kind, number in rejected.most_common(3))
        listing_hint = f"They are listed in {options.output}/{REJECTS_FOLDER}/."
        flag = "--append" if options.append else "--resume"
        if not options.max_bad_records.allows(rejected_count, input_count):
            raise SourceError(
                f"{rejected_count} of {count_text(input_count, 'input')} rejected ({kinds}), more than"
                f" --max-bad-records={options.max_bad_records}. {listing_hint} Fix them or allow more, and run again with {flag}."
            )
        if rejected_count == input_count and self._base is None:
            raise SourceError(
                f"{options.input}: {rejected_count} of {count_text(input_count, 'input')} rejected ({kinds}); a dataset has at"
                f" least one record. {listing_hint} Fix them, and run again with {flag}."
            )


def _add_up(results: Iterable[tuple[Any, ...]], converter: Converter, plan: Plan, input_counts: InputCounts) -> _Totals:
    """Add up the ShardResults of all shards, in the order of the shards' names, and the inputs that the listing rejected.

    Args:
        results: the ShardResult of every shard, as a tuple.
        converter: converter that reads and merges the summaries of shards.
        plan: plan of the shards, which names the splits.
        input_counts: counts of inputs that are in no shard.
    """
    totals = _Totals(
        summary=converter.new_summary(),
        shards={name: [] for name in plan.splits},
        decoded_bytes=dict.fromkeys(plan.splits, 0),
        rejected=Counter(input_counts.rejected),
        converted=Counter(converter.count_converted()),
        files=[],
    )
    for result in sorted((ShardResult(*fields) for fields in results), key=lambda result: result.name):
        totals.files.extend(WrittenFile(*file) for file in result.files)
        summary_json = json.loads(result.summary)
        summary = converter.summary_from_json(summary_json)
        totals.summary.merge(summary)
        totals.decoded_bytes[result.split] += summary.decoded_bytes
        totals.rejected.update(result.rejected)
        totals.converted.update(summary_json.get("converted", {}))
        if result.record_count:
            totals.shards[result.split].append(Shard(result.name, result.record_count, result.bytes, result.crc32c))
    return totals


def _count_inputs(converter: Converter, totals: _Totals, input_counts: InputCounts) -> dict[str, int]:
    """Return the converter's counts for the manifest, and the number of duplicates if there are any."""
    duplicate_count = sum(count for count, _ in input_counts.duplicates.values())
    return {**converter.counts(totals.summary), **({"duplicates": duplicate_count} if duplicate_count else {})}
