"""The last step: from the results of all shards to the metadata and the manifest."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from beam_jobs.converter import ShardContext
from beam_jobs.output.folder import reject_another_run
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
        begin: bytes,
        results: Iterable[tuple[Any, ...]],
        plan: Plan,
        context: ShardContext,
        inputs: InputCounts,
    ) -> Iterator[Manifest]:
        """Write the metadata of one dataset, and yield its manifest.

        Args:
            begin: the one element that starts the step.
            results: the ShardResult of every shard, as tuples.
            plan: plan of the shards.
            context: facts about all inputs, as the converter got them.
            inputs: those that have no record.

        Raises:
            SourceError: there is no record, or too many inputs were rejected.
            OutputError: another run has claimed the folder or written to it.
        """
        del begin
        labels, converter = context.labels, self._spec.converter.apply_context(context)
        total = converter.new_summary()
        decoded = dict.fromkeys(plan.splits, 0)
        shards: dict[str, list[Shard]] = {name: [] for name in plan.splits}
        rejected = Counter(inputs.rejected)
        converted = Counter(converter.count_converted())
        written_files: list[WrittenFile] = []
        for result in (ShardResult(*fields) for fields in sorted(results, key=lambda fields: str(fields[1]))):
            written_files += (WrittenFile(*file) for file in result.files)
            summary_json = json.loads(result.summary)
            summary = converter.summary_from_json(summary_json)
            total.merge(summary)
            decoded[result.split] += summary.decoded_bytes
            rejected.update(result.rejected)
            converted.update(summary_json.get("converted", {}))
            if result.records:
                shards[result.split].append(Shard(result.name, result.records, result.bytes, result.crc32c))
        self._check_rejected(rejected, plan.files + sum(inputs.rejected.values()))
        if self._base is not None and not any(shards.values()):
            # Classes come with records.
            labels = Labels(self._base.labels or ())
        if not any(shards.values()) and self._base is None:
            raise SourceError(
                f"{self._options.input}: no record in {count_text(plan.files, 'input')}. Pass an input that holds text."
            )
        counts = converter.counts(total)
        if duplicates := sum(count for count, _ in inputs.duplicates.values()):
            counts["duplicates"] = duplicates
        manifest = Manifest(
            layout=self._spec.layout,
            compression=self._options.compression,
            splits={name: Split(tuple(shards[name]), decoded[name]) for name in sorted(shards) if shards[name]},
            features=converter.features(total, labels),
            source=Source(self._options.input, plan.files, plan.bytes, plan.fingerprint, inputs.ignored),
            created_by=f"tpudata {__version__}",
            labels=len(labels.names) if self._spec.has_classes and labels.names else None,
            rejected=dict(sorted(rejected.items())),
            options={**self._spec.deciding_options, **converter.manifest_options(context)},
            rejects=list_listing_rejects(self._options.output),
            keys=self._spec.keys,
            converted=dict(sorted(converted.items())),
            counts=counts,
            dali_index=self._options.dali_index,
            maxima=dict(sorted(converter.maxima(total).items())),
            warnings={**plan.warnings, **converter.warnings(total)},
        )
        adds = bool(manifest.splits or manifest.rejected)
        if self._base is not None:
            manifest = self._base.merge(manifest) if adds else self._base.manifest
        if self._is_written(manifest):
            # An earlier attempt at this step got so far.
            yield manifest
            return
        check_claim(self._options.output, self._claim)
        remove_temporary_files(self._options.output)
        if self._base is not None:
            if not adds:
                self._drop_claim()
                yield manifest
                return
            self._reject_another_append(self._base.manifest, manifest)
        else:
            reject_another_run(self._options.output, manifest)
        written_files += self._write_files(converter.files(context))
        if self._base is not None:
            shards_before = (shard for split in self._base.manifest.splits.values() for shard in split.shards)
            written_files += (WrittenFile(shard.name, shard.bytes, shard.crc32c) for shard in shards_before)
        check_claim(self._options.output, self._claim)
        names = labels.names if self._spec.has_classes and labels.names else None
        manifest = write_metadata(self._options.output, manifest, names, written_files)
        self._drop_claim()
        yield manifest

    def _is_written(self, manifest: Manifest) -> bool:
        """Return whether the claim is missing because the dataset is complete."""
        output = self._options.output
        if self._claim is None or has_claim(output, self._claim):
            return False
        storage = storage_for(output)
        if storage.stat(storage.join(output, MANIFEST_NAME)) is None:
            return False
        stored = open_dataset(output).manifest
        return dataclasses.replace(stored, labels_crc32c=manifest.labels_crc32c, tfds=manifest.tfds) == manifest

    def _drop_claim(self) -> None:
        """Remove the claim that nobody else would remove."""
        if self._claim is not None and self._claim.ends_with != PROCESS:
            drop_claim(self._options.output, self._claim)

    def _write_files(self, files: Mapping[str, bytes]) -> list[WrittenFile]:
        storage = storage_for(self._options.output)
        for name, data in files.items():
            with storage.create(storage.join(self._options.output, name)) as file:
                file.write(data)
        return [WrittenFile.of(*file) for file in files.items()]

    def _reject_another_append(self, before: Manifest, after: Manifest) -> None:
        """Raise OutputError if the folder's manifest is neither `before`, found at the start, nor `after`, as a retry finds it."""
        stored = open_dataset(self._options.output).manifest
        if dataclasses.replace(stored, labels_crc32c=before.labels_crc32c, tfds=before.tfds) not in (before, after):
            raise OutputError(
                f"--append: another job has changed {self._options.output} since this one began, and may have written shards of the"
                " same names. `tpudata verify` says whether it is whole. Run one job at a time."
            )

    def _check_rejected(self, rejected: Counter[str], records: int) -> None:
        """Raise SourceError if more inputs were rejected than allowed, or all of a dataset's."""
        options, count = self._options, rejected.total()
        kinds = ", ".join(f"{number} {kind}" for kind, number in rejected.most_common(3))
        listing_hint = f"They are listed in {options.output}/{REJECTS_FOLDER}/."
        flag = "--append" if options.append else "--resume"
        if not options.max_bad_records.allows(count, records):
            raise SourceError(
                f"{count} of {count_text(records, 'input')} rejected ({kinds}), more than"
                f" --max-bad-records={options.max_bad_records}. {listing_hint} Fix them or allow more, and run again with {flag}."
            )
        if count == records and self._base is None:
            raise SourceError(
                f"{options.input}: {count} of {count_text(records, 'input')} rejected ({kinds}); a dataset has at least one record."
                f" {listing_hint} Fix them, and run again with {flag}."
            )
