"""The last step: from the results of all shards to the metadata and the manifest."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam

from beam_jobs.append.base import Base
from beam_jobs.converter import Converter, ShardConverter
from beam_jobs.options import ConvertOptions
from beam_jobs.output.folder import refuse_another_run, remove_temporary_files
from beam_jobs.output.rejects import listing_rejects
from beam_jobs.planning.plan import Plan
from beam_jobs.references.labels import Labels
from beam_jobs.steps.make_plan import summed
from beam_jobs.steps.write_shards import ShardResult
from tpudata._version import __version__
from tpudata.errors import OutputError, SourceError
from tpudata.format import Manifest, Shard, Source, Split, open_dataset, write_metadata
from tpudata.format.layout import REJECTS_FOLDER
from tpudata.format.manifest import MANIFEST_NAME
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for
from tpudata.storage.claims.claim import PROCESS, Claim, check_claim, drop_claim, has_claim
from tpudata.tables import counted


class WriteMetadata(beam.DoFn):  # type: ignore[misc]
    """Writes what stands beside the shards, the manifest last, from the list of all ShardResults.

    Runs inside the pipeline, so that a dataset is completed even where the process that started the job is gone.

    Args:
        options: of the conversion.
        converter: made the records.
        layout: name of the feature layout.
        has_classes: whether the dataset has classes.
        deciding: the options that decide what the shards hold, for the manifest.
        keys: whether the shards have files of keys.
        base: the dataset that the shards are added to, or None.
        claim: the run's, which it must still hold; or None. That of a job or of a pipeline ends here.
    """

    def __init__(
        self,
        options: ConvertOptions,
        converter: Converter | ShardConverter,
        layout: str,
        has_classes: bool,
        deciding: Mapping[str, Any],
        *,
        keys: bool = False,
        base: Base | None = None,
        claim: Claim | None = None,
    ) -> None:
        super().__init__()
        self._claim = claim
        self._options = options
        self._converter = converter
        self._layout = layout
        self._has_classes = has_classes
        self._deciding = dict(deciding)
        self._keys = keys
        self._base = base

    def process(
        self,
        results: Iterable[tuple[Any, ...]],
        plan: Plan,
        labels: Labels,
        ignored: int,
        refused: Iterable[dict[str, int]],
        checked: Iterable[None] = (),
        learned: Any = None,
        left_out: Iterable[Mapping[str, tuple[int, int]]] = (),
    ) -> Iterator[Manifest]:
        """Writes the metadata of one dataset, and yields its manifest.

        Args:
            results: the ShardResult of every shard, as tuples.
            plan: of the shards.
            labels: the classes.
            ignored: how many files were passed over by their name.
            refused: how many records were refused before they were planned, by kind, of each part of the listing.
            checked: nothing; what it comes from raises where the dataset must not be completed.
            learned: what a ShardConverter gets.
            left_out: of parts of the input, by split, how many inputs were left out, and their bytes.
        """
        del checked
        total = self._converter.new_summary()
        decoded = dict.fromkeys(plan.splits, 0)
        shards: dict[str, list[Shard]] = {name: [] for name in plan.splits}
        unplanned: Counter[str] = Counter()
        for counts in refused:
            unplanned.update(counts)
        rejected = Counter(unplanned)
        converted: Counter[str] = Counter()
        written: list[WrittenFile] = []
        for result in (ShardResult(*fields) for fields in sorted(results, key=lambda fields: str(fields[1]))):
            written += (WrittenFile(*file) for file in result.files)
            said = json.loads(result.summary)
            summary = self._converter.summary_from_json(said)
            total.merge(summary)
            decoded[result.split] += summary.decoded_bytes
            rejected.update(result.rejected)
            converted.update(said.get("converted", {}))
            if result.records:
                shards[result.split].append(Shard(result.name, result.records, result.bytes, result.crc32c))
        self._check_refused(rejected, plan.files + unplanned.total())
        if self._base is not None and not any(shards.values()):
            # Classes come with records.
            labels = Labels(self._base.labels or ())
        options, counts, files = self._deciding, {}, {}
        if isinstance(self._converter, ShardConverter):
            options = {**options, **self._converter.said(learned)}
            counts = self._converter.counts(total)
            if duplicates := sum(count for count, _ in summed(left_out).values()):
                counts["duplicates"] = duplicates
            files = self._converter.files(learned)
            if not any(shards.values()) and self._base is None:
                raise SourceError(
                    f"{self._options.input}: no record in {counted(plan.files, 'input')}. Pass an input that holds text."
                )
        manifest = Manifest(
            layout=self._layout,
            compression=self._options.compression,
            splits={name: Split(tuple(shards[name]), decoded[name]) for name in sorted(shards) if shards[name]},
            features=self._converter.features(total, labels),
            source=Source(self._options.input, plan.files, plan.bytes, plan.fingerprint, ignored),
            created_by=f"tpudata {__version__}",
            labels=len(labels.names) if self._has_classes else None,
            rejected=dict(sorted(rejected.items())),
            options=options,
            rejects=listing_rejects(self._options.output),
            keys=self._keys,
            converted=dict(sorted(converted.items())),
            counts=counts,
            dali_index=self._options.dali_index,
        )
        if self._is_written(manifest):
            # An earlier attempt at this step got so far.
            yield manifest
            return
        check_claim(self._options.output, self._claim)
        remove_temporary_files(self._options.output)
        if self._base is not None:
            if not manifest.splits and not manifest.rejected:
                self._drop_claim()
                yield self._base.manifest
                return
            manifest = self._base.merged(manifest)
            self._refuse_another_append(self._base.manifest, manifest)
        else:
            refuse_another_run(self._options.output, manifest)
        written += self._write_files(files)
        if self._base is not None:
            shards_before = (shard for split in self._base.manifest.splits.values() for shard in split.shards)
            written += (WrittenFile(shard.name, shard.bytes, shard.crc32c) for shard in shards_before)
        check_claim(self._options.output, self._claim)
        names = labels.names if self._has_classes else None
        manifest = write_metadata(self._options.output, manifest, names, written)
        self._drop_claim()
        yield manifest

    def _is_written(self, manifest: Manifest) -> bool:
        """Whether the claim is gone because the dataset is complete."""
        output = self._options.output
        if self._claim is None or self._base is not None or has_claim(output, self._claim):
            return False
        storage = storage_for(output)
        if storage.stat(storage.join(output, MANIFEST_NAME)) is None:
            return False
        found = open_dataset(output).manifest
        return dataclasses.replace(found, labels_crc32c=manifest.labels_crc32c, tfds=manifest.tfds) == manifest

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

    def _refuse_another_append(self, before: Manifest, after: Manifest) -> None:
        """Raises OutputError where the manifest that is there is neither the one that was found, nor what a retry finds."""
        found = open_dataset(self._options.output).manifest
        if dataclasses.replace(found, labels_crc32c=before.labels_crc32c, tfds=before.tfds) not in (before, after):
            raise OutputError(
                f"--append: another job has changed {self._options.output} since this one began, and may have written shards of the"
                " same names. `tpudata verify` says whether it is whole. Run one job at a time."
            )

    def _check_refused(self, rejected: Counter[str], records: int) -> None:
        """Raises SourceError where more inputs were refused than allowed, or all of a dataset's."""
        options, refused = self._options, rejected.total()
        kinds = ", ".join(f"{count} {kind}" for kind, count in rejected.most_common(3))
        where = f"They are listed in {options.output}/{REJECTS_FOLDER}/."
        again = "--append" if options.append else "--resume"
        if not options.max_bad_records.allows(refused, records):
            raise SourceError(
                f"{refused} of {counted(records, 'input')} rejected ({kinds}), more than"
                f" --max-bad-records={options.max_bad_records}. {where} Mend them or allow more, and run again with {again}."
            )
        if refused == records and self._base is None:
            raise SourceError(
                f"{options.input}: {refused} of {counted(records, 'input')} rejected ({kinds}); a dataset has at least one record."
                f" {where} Mend them, and run again with {again}."
            )
