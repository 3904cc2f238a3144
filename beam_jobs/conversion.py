"""A conversion: its source, converter and output; beam_jobs.conversion_run runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import apache_beam as beam

from beam_jobs.append.base import Base
from beam_jobs.append.new_inputs import make_new_inputs
from beam_jobs.converter import Converter
from beam_jobs.options import ConvertOptions
from beam_jobs.planning.warning_lines import InputFacts
from beam_jobs.references.labels import Labels
from beam_jobs.sources import Source
from beam_jobs.sources.source import ScannedSource
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.listing.list_references import ExtraBytes
from beam_jobs.steps.listing.scan_source import scan_here as scan_source_here
from beam_jobs.steps.make_plan import Estimate
from tpudata.format import Feature, Manifest
from tpudata.storage import RequestLimits
from tpudata.storage.claims.claim import Claim


def _accept_source(source: Source) -> None:
    """Do nothing: without a chosen reader the records of any source can be written."""
    del source


def _make_no_remarks(manifest: Manifest) -> Iterable[str]:
    """Return no lines, for conversions that have nothing to add to their result."""
    del manifest
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion, ready to be planned or run.

    Attributes:
        options: options of the output, the shards and the run.
        source: source of the records.
        converter: converter that makes them.
        layout: name of the feature layout.
        extra_bytes: function from a pack to the approximate bytes of each record besides its content, such as names: int64 [n].
        estimate: function that estimates, from a sample, the ratio of the bytes of content in a shard to those in the input, see
            `Estimate`.
        deciding_options: all options that determine the content of the shards, for the manifest: a JSON object.
        path_options: names of the deciding options that are paths.
        collect_characters: function from request limits to the step that collects the vocabulary's characters; None without that
            step.
        omit_duplicates: function from request limits to the step that omits duplicates, see steps/duplicates/texts.py; None keeps
            all.
        files: names of the files that the converter keeps next to the shards.
        input_noun: noun for one input, for messages.
        has_unique_keys: whether the source never lists two inputs with the same key.
        stores_keys: whether the dataset stores which inputs it has, which an append needs.
        why_ignored: function that returns why files were ignored, a phrase to follow their number; None if only their names decide.
        remarks: function from the manifest of the complete dataset to lines for the user.
        facts: facts about the input before it is listed, for warnings.
        check_source: function that raises UsageError if a source's records cannot be written for the chosen reader.
        base: the dataset to append to, once it is opened, otherwise None; with it, `source` lists new inputs only.
        claim: claim of the run on the output, once it is taken, otherwise None.
    """

    options: ConvertOptions
    source: Source
    converter: Converter
    layout: str
    extra_bytes: ExtraBytes
    estimate: Estimate
    deciding_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    path_options: frozenset[str] = frozenset()
    collect_characters: Callable[[RequestLimits], beam.PTransform] | None = None
    omit_duplicates: Callable[[RequestLimits], beam.PTransform] | None = None
    files: tuple[str, ...] = ()
    input_noun: str = "file"
    has_unique_keys: bool = False
    stores_keys: bool = True
    why_ignored: Callable[[], str] | None = None
    remarks: Callable[[Manifest], Iterable[str]] = _make_no_remarks
    facts: InputFacts = dataclasses.field(default_factory=InputFacts)
    check_source: Callable[[Source], None] = _accept_source
    base: Base | None = None
    claim: Claim | None = None

    def scan_here(self) -> Conversion:
        """Return this conversion with a source whose schema is known: scan a ScannedSource in this process.

        Raises:
            SourceError: two rows have the same key, or the input is invalid.
            UsageError: the options do not fit the input.
            OutputError: see `check_base`.
        """
        if not isinstance(self.source, ScannedSource):
            return self
        return self.replace_source(scan_source_here(self.source))

    def replace_source(self, source: Source) -> Conversion:
        """Return this conversion with a source whose schema is known.

        Raises:
            UsageError: the options do not fit the source.
            OutputError: see `check_base`.
        """
        self.check_source(source)
        converter = self.converter.apply_columns(source.record_columns)
        scanned = dataclasses.replace(self, source=source, converter=converter)
        scanned.check_base()
        return scanned

    def select_new_inputs(self, base: Base, entry_file: str) -> Conversion:
        """Return the conversion of the inputs that a dataset lacks; `entry_file` is the path of the dataset's entry file."""
        return dataclasses.replace(self, base=base, source=make_new_inputs(self.source, base, entry_file))

    def check_base(self) -> None:
        """Check that records of this conversion can be appended to the dataset, if there is one to append to.

        Raises:
            OutputError: the dataset does not have the features of new records, or its labels.txt does not list the classes of new
                objects.
        """
        # The features of a source that is not scanned yet are unknown; `replace_source` checks them.
        if self.base is not None and not isinstance(self.source, ScannedSource):
            self.base.check_features(self.features())
            self.base.check_annotations(self.source.annotations)

    def features(self) -> tuple[Feature, ...]:
        """Return the features of the records; sizes and numbers of classes that only the records show are placeholders."""
        # One placeholder class: what matters is only whether there are classes.
        classes = Labels(("any",)) if self.source.has_classes else Labels(())
        return self.converter.features(self.converter.new_summary(), classes)

    def spec(self) -> DatasetSpec:
        """Return the specification of the dataset to write."""
        return DatasetSpec(
            self.options,
            self.converter,
            self.layout,
            self.source.has_classes,
            self.deciding_options,
            stores_keys=self.stores_keys,
            base=self.base,
            claim=self.claim,
        )
