"""What turns inputs into records: input by input, or all of a shard at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from tpudata.errors import BadRecordError
from tpudata.format import Feature

# Called with an input that is refused, and why.
RefuseInput: TypeAlias = Callable[[Reference, BadRecordError], None]


class Summary(Protocol):
    """What a converter says about the records of a shard, or of a dataset."""

    decoded_bytes: int

    def merge(self, other: Any) -> None:
        """Adds what another summary has counted."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `converted`, where it has that, counts by reason the inputs that were stored in another encoding."""


class Converter(Protocol):
    """Turns what references point to into records. A frozen dataclass: its fields decide what it writes."""

    def new_summary(self) -> Any:
        """A summary that has counted nothing."""

    def summary_from_json(self, value: dict[str, Any]) -> Any:
        """The summary that `Summary.to_json` wrote."""

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: Any) -> bytes | Sequence[bytes]:
        """The record of one input, whole or in parts; BadRecordError where it is refused."""

    def features(self, summary: Any, labels: Labels) -> tuple[Feature, ...]:
        """The schema of a dataset whose records `summary` has counted."""


@runtime_checkable
class ShardConverter(Protocol):
    """Turns all inputs of a shard into its records, which may be more or fewer; otherwise as Converter."""

    def new_summary(self) -> Any:
        """As Converter."""

    def summary_from_json(self, value: dict[str, Any]) -> Any:
        """As Converter."""

    def features(self, summary: Any, labels: Labels) -> tuple[Feature, ...]:
        """As Converter."""

    def records(
        self, inputs: Iterable[tuple[Reference, bytes]], learned: Any, summary: Any, refuse: RefuseInput
    ) -> Iterator[bytes]:
        """Yields the records of a shard.

        Args:
            inputs: of the shard, in order, and their bytes.
            learned: what the conversion has learned from all inputs, or None.
            summary: counts what is made.
            refuse: may raise; where it returns, the input is left out.
        """

    def said(self, learned: Any) -> dict[str, Any]:
        """What the manifest's options say beside those that were given, once all inputs are known."""

    def counts(self, summary: Any) -> dict[str, int]:
        """What the manifest counts."""

    def files(self, learned: Any) -> dict[str, bytes]:
        """Files that are kept beside the shards, by name."""
