"""The last step: from the results of all shards to the metadata and the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_jobs.labels import Labels
from beam_jobs.options import ConvertOptions
from beam_jobs.output import refuse_strays, remove_temporary_files
from beam_jobs.plan import Plan
from beam_jobs.shards import Converter, ShardResult
from tpudata._version import __version__
from tpudata.format import Manifest, Shard, Source, Split, write_metadata


class WriteMetadata(beam.DoFn):  # type: ignore[misc]
    """Writes what stands beside the shards, the manifest last, from the list of all ShardResults.

    Runs inside the pipeline, so that a dataset is completed even where the process that started the job is gone.

    Args:
        options: of the conversion.
        converter: made the records.
        layout: name of the feature layout.
        has_classes: whether the dataset has classes.
    """

    def __init__(self, options: ConvertOptions, converter: Converter, layout: str, has_classes: bool) -> None:
        super().__init__()
        self._options = options
        self._converter = converter
        self._layout = layout
        self._has_classes = has_classes

    def process(self, results: Iterable[tuple[Any, ...]], plan: Plan, labels: Labels, ignored: int) -> Iterator[None]:
        """Writes the metadata of one dataset; yields nothing."""
        total = self._converter.new_summary()
        decoded = dict.fromkeys(plan.splits, 0)
        shards: dict[str, list[Shard]] = {name: [] for name in plan.splits}
        for result in (ShardResult(*fields) for fields in sorted(results, key=lambda fields: str(fields[1]))):
            summary = self._converter.summary_from_json(result.summary)
            total.merge(summary)
            decoded[result.split] += summary.decoded_bytes
            shards[result.split].append(Shard(result.name, result.records, result.bytes, result.crc32c))
        manifest = Manifest(
            layout=self._layout,
            splits={name: Split(tuple(shards[name]), decoded[name]) for name in sorted(shards)},
            features=self._converter.features(total, labels),
            source=Source(self._options.input, plan.files, plan.bytes, plan.fingerprint, ignored),
            created_by=f"tpudata {__version__}",
            labels=len(labels.names) if self._has_classes else None,
            options=self._options.deciding(),
        )
        refuse_strays(self._options.output, manifest)
        remove_temporary_files(self._options.output)
        write_metadata(self._options.output, manifest, labels.names if self._has_classes else None)
        yield from ()
