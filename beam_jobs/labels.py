"""Classes and their labels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import apache_beam as beam

from tpudata.errors import SourceError


@dataclasses.dataclass(frozen=True)
class Labels:
    """The classes of a dataset.

    Attributes:
        names: class names; the label of a class is its place here, counted from 0.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if name.splitlines() != [name] or not is_utf8(name):
                raise SourceError(
                    f"class name {name!r} is empty, has a line break or is not UTF-8, which labels.txt cannot hold. Rename it."
                )

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        """The label of a class, counted from 0; ValueError where there is none."""
        number = self._numbers.get(name)
        if number is None:
            raise ValueError(f"unknown label {name!r}; {len(self.names)} are known")
        return number


def is_utf8(name: str) -> bool:
    """Whether UTF-8 can encode a text; it cannot where the text stands for other bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class CollectLabels(beam.CombineFn):  # type: ignore[misc]
    """Combines sets of class names into Labels, in sorted order.

    Args:
        integers: the names are whole numbers that are the labels themselves; then the classes are 0 to the largest.
    """

    def __init__(self, integers: bool) -> None:
        super().__init__()
        self._integers = integers

    def create_accumulator(self) -> set[str]:
        """No names."""
        return set()

    def add_input(self, names: set[str], more: Iterable[str]) -> set[str]:
        """Adds names."""
        names.update(more)
        return names

    def merge_accumulators(self, parts: Iterable[set[str]]) -> set[str]:
        """All names."""
        return set().union(*parts)

    def extract_output(self, names: set[str]) -> Labels:
        """The labels of the names."""
        if self._integers and names:
            return Labels(tuple(str(number) for number in range(max(int(name) for name in names) + 1)))
        return Labels(tuple(sorted(names)))
