"""The dataset that a conversion writes: shared by the steps that write shards and metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from beam_jobs.append.base import Base
from beam_jobs.converter import Converter
from beam_jobs.options import ConvertOptions
from tpudata.storage.claims.claim import Claim


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Description of the dataset that a run writes.

    Attributes:
        options: options of the conversion: folder, shards, treatment of bad records.
        converter: converter that makes the records.
        layout: name of the feature layout.
        has_classes: whether records have classes, whose names go into labels.txt.
        deciding_options: the options that determine the content of the shards, for the manifest: a JSON object.
        stores_keys: whether shards have a file of the keys of their inputs, which an append needs.
        base: the dataset that is appended to, or None.
        claim: the claim of the run on the output; None in tests.
    """

    options: ConvertOptions
    converter: Converter
    layout: str
    has_classes: bool
    deciding_options: Mapping[str, Any]
    stores_keys: bool = False
    base: Base | None = None
    claim: Claim | None = None

    @property
    def append_number(self) -> int:
        """The number of the append that writes the shards, or 0."""
        return 0 if self.base is None else self.base.number

    @property
    def has_dali_index(self) -> bool:
        """Whether shards get an index for NVIDIA DALI."""
        return self.options.dali_index if self.base is None else self.base.manifest.dali_index
