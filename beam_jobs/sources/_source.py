"""What a source is, and how it makes references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from beam_jobs.labels import Labels
from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions
from beam_jobs.reference import WHOLE_FILE, Reference, shuffled_position
from tpudata.format import Feature


class Source(Protocol):
    """An input of one form. A frozen dataclass that is pickled to the workers; making it looks at the input, reading little."""

    @property
    def has_classes(self) -> bool:
        """Whether records have class names."""

    @property
    def labels(self) -> Labels | None:
        """The classes, where they are known before listing; None where they are collected from the references."""

    @property
    def integer_labels(self) -> bool:
        """Whether class names are whole numbers that are the labels themselves."""

    @property
    def extra(self) -> tuple[Feature, ...]:
        """Schema of what `Reference.extra` holds; empty where it holds nothing."""

    def units(self) -> Sequence[Any]:
        """Parts that are listed on their own, on any worker: folders, files, ranges."""

    def references(self, unit: Any, ignored: list[str]) -> Iterator[Reference]:
        """Yields a reference to each record of a unit; `ignored` gets the path of what was passed over by its name."""


def make_reference(
    options: ConvertOptions,
    key: str,
    *,
    path: str,
    size: int,
    offset: int = WHOLE_FILE,
    split: str = "",
    labels: tuple[str, ...] = (),
    form: str = "",
    extra: str = "",
    data: bytes = b"",
) -> Reference:
    """A reference with its split and its position; `split` is where the input says it, nothing where the options deal it out."""
    if not split:
        split = options.split.split_of(key) if options.split else DEFAULT_SPLIT
    return Reference(shuffled_position(key, options.seed), key, split, labels, path, offset, size, form, extra, data)
