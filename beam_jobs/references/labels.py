"""Classes and their labels."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable

import apache_beam as beam

from tpudata.console.tables import count_text
from tpudata.errors import SourceError

# Above this many classes, more than one in `_CLASSES_PER_LABEL` must occur; the largest known sets have 21,841 classes.
_MANY_CLASSES = 10_000
_CLASSES_PER_LABEL = 100
_INTEGER = re.compile(r"0|[1-9][0-9]*")
_FIX = (
    "Correct the label, pass --labels FILE with a name for each class, or pass --label-type str to number the labels"
    " that occur."
)


NO_CLASS_NAME = "empty, not UTF-8 or with a line break, which labels.txt cannot hold"


@dataclasses.dataclass(frozen=True)
class Labels:
    """The classes of a dataset.

    Attributes:
        names: class names; the label of a class is its index here.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if not is_class_name(name):
                raise SourceError(f"class name {name!r}: {NO_CLASS_NAME}. Rename it.")

    @functools.cached_property
    def _labels_by_name(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.names)}

    def find_label(self, name: str) -> int:
        """Return the label of a class, counted from 0; ValueError for an unknown class."""
        label = self._labels_by_name.get(name)
        if label is None:
            raise ValueError(f"unknown label: {name!r}; {len(self.names)} are known")
        return label

    def find(self, name_or_label: str) -> int:
        """Return the label of a class from its name or, if no class has that name, from its label.

        Raises:
            ValueError: the class is unknown.
        """
        is_name = name_or_label in self._labels_by_name
        if not is_name and is_integer_label(name_or_label) and is_below(name_or_label, len(self.names)):
            return int(name_or_label)
        return self.find_label(name_or_label)


NO_LABELS = Labels(())


def make_integer_labels(names: Iterable[str]) -> Labels:
    """Return the classes 0, 1, ... up to the largest of these integers."""
    return Labels(tuple(map(str, range(max(map(int, names), default=0) + 1))))


def is_integer_label(text: str) -> bool:
    """Return whether a string is an integer without sign and leading zeros."""
    return _INTEGER.fullmatch(text) is not None


def is_below(integer_label: str, limit: int) -> bool:
    """Return whether an integer label is less than a limit; int() rejects strings of over 4,300 digits."""
    return len(integer_label) <= len(str(limit)) and int(integer_label) < limit


def check_classes(largest: int, label_count: int, origin: str, fix: str = _FIX) -> None:
    """Raise SourceError if integer labels make more than 10,000 classes, at least 99 % of them empty: they may be years or ids.

    Args:
        largest: the largest label that occurs.
        label_count: number of different labels that occur.
        origin: file and line of the largest label, or the input.
        fix: sentence that ends the message.
    """
    if largest >= _MANY_CLASSES and label_count * _CLASSES_PER_LABEL <= largest:
        raise SourceError(
            f"{origin}: label {largest} makes {count_text(largest + 1, 'class', 'classes')}, as whole numbers are labels"
            f" themselves, but {label_count:,} different labels occur. {fix}"
        )


def is_class_name(name: str) -> bool:
    """Return whether labels.txt can hold a class name: one line of UTF-8."""
    return name.splitlines() == [name] and is_utf8(name)


def is_utf8(name: str) -> bool:
    """Return whether UTF-8 can encode a name: it has no lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class CollectLabels(beam.CombineFn):  # type: ignore[misc]
    """Combination of sets of class names into Labels, in sorted order.

    Args:
        names_are_labels: whether the names are integers that are the labels themselves, so that the classes are 0 to the
            largest.
        has_all_names: whether the names are all classes of the dataset; only then is the largest checked with `check_classes`.
    """

    def __init__(self, names_are_labels: bool, *, has_all_names: bool = True) -> None:
        super().__init__()
        self._names_are_labels = names_are_labels
        self._has_all_names = has_all_names

    def create_accumulator(self) -> set[str]:
        """Return an empty set of names."""
        return set()

    def add_input(self, names: set[str], new_names: Iterable[str]) -> set[str]:
        """Add names."""
        names.update(new_names)
        return names

    def merge_accumulators(self, accumulators: Iterable[set[str]]) -> set[str]:
        """Return the names of all accumulators."""
        return set().union(*accumulators)

    def extract_output(self, names: set[str]) -> Labels:
        """Return the labels of the names; SourceError if `check_classes` raises it."""
        if self._names_are_labels and names:
            if self._has_all_names:
                check_classes(max(map(int, names)), len(names), "the input")
            return make_integer_labels(names)
        return Labels(tuple(sorted(names)))
