"""The last step: from the results of all shards to the metadata and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam

from beam_jobs.labels import Labels
from beam_jobs.options import ConvertOptions
from beam_jobs.output import remove_temporary_files
from beam_jobs.plan import Plan
from beam_jobs.shards import Converter, ShardResult
from tpudata._version import __version__
from tpudata.errors import SourceError
from tpudata.format import Manifest, Shard, Source, Split, write_metadata
from tpudata.format.layout import REJECTS_FOLDER


class WriteMetadata(beam.DoFn):  # type: ignore[misc]
    """Writes what stands beside the shards, the manifest last, from the list of all ShardResults.

    Runs inside the pipeline, so that a dataset is completed even where the process that started the job is gone.

    Args:
        options: of the conversion.
        converter: made the records.
        layout: name of the feature layout.
        has_classes: whether the dataset has classes.
        deciding: the options that decide what the shards hold, for the manifest.
    """

    def __init__(
        self,
        options: ConvertOptions,
        converter: Converter,
        layout: str,
        has_classes: bool,
        deciding: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._options = options
        self._converter = converter
        self._layout = layout
        self._has_classes = has_classes
        self._deciding = dict(deciding)

    def process(
        self,
        results: Iterable[tuple[Any, ...]],
        plan: Plan,
        labels: Labels,
        ignored: int,
        refused: Iterable[dict[str, int]],
    ) -> Iterator[Manifest]:
        """Writes the metadata of one dataset, and yields its manifest.

        Args:
            results: the ShardResult of every shard, as tuples.
            plan: of the shards.
            labels: the classes.
            ignored: how many files were passed over by their name.
            refused: how many records were refused before they were planned, by kind, of each part of the listing.
        """
        total = self._converter.new_summary()
        decoded = dict.fromkeys(plan.splits, 0)
        shards: dict[str, list[Shard]] = {name: [] for name in plan.splits}
        unplanned: Counter[str] = Counter()
        for counts in refused:
            unplanned.update(counts)
        rejected = Counter(unplanned)
        for result in (ShardResult(*fields) for fields in sorted(results, key=lambda fields: str(fields[1]))):
            summary = self._converter.summary_from_json(result.summary)
            total.merge(summary)
            decoded[result.split] += summary.decoded_bytes
            rejected.update(result.rejected)
            shards[result.split].append(Shard(result.name, result.records, result.bytes, result.crc32c))
        self._check_budget(rejected, plan.files + unplanned.total())
        manifest = Manifest(
            layout=self._layout,
            splits={name: Split(tuple(shards[name]), decoded[name]) for name in sorted(shards)},
            features=self._converter.features(total, labels),
            source=Source(self._options.input, plan.files, plan.bytes, plan.fingerprint, ignored),
            created_by=f"tpudata {__version__}",
            labels=len(labels.names) if self._has_classes else None,
            rejected=dict(sorted(rejected.items())),
            options=self._deciding,
        )
        remove_temporary_files(self._options.output)
        write_metadata(self._options.output, manifest, labels.names if self._has_classes else None)
        yield manifest

    def _check_budget(self, rejected: Counter[str], records: int) -> None:
        if not self._options.max_bad_records.allows(rejected.total(), records):
            kinds = ", ".join(f"{count} x {kind}" for kind, count in rejected.most_common(3))
            raise SourceError(
                f"{rejected.total()} of {records} inputs were refused ({kinds}), more than"
                f" --max-bad-records={self._options.max_bad_records}. They are listed in {self._options.output}/{REJECTS_FOLDER}/."
                " Mend them or allow more, and run again with --resume."
            )
