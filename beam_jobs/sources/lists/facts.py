"""Facts that a source learns from whole lists; the facts of each list are merged, in any order."""

from __future__ import annotations

import dataclasses

from beam_jobs.references.labels import Labels, check_classes, is_integer_label, make_integer_labels
from beam_jobs.sources.classes import is_number_label, is_too_large
from beam_jobs.sources.lists.columns import ColumnFacts
from beam_jobs.sources.lists.place import RowPlace
from beam_jobs.sources.named_splits import find_listed_split
from beam_jobs.sources.source import sum_blocks_before
from beam_jobs.values.column_kinds import INT
from tpudata.errors import SourceError


@dataclasses.dataclass
class ListFacts:
    """Facts about the rows of some lists.

    Attributes:
        lists: by index of the list, its path and its number of blocks.
        columns: facts about the extra columns.
        class_places: by class name, the first row that has it.
        has_several_labels: whether a row may have any number of labels.
        split_places: by name in the column of splits, the first row that has it.
    """

    lists: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    columns: ColumnFacts = dataclasses.field(default_factory=ColumnFacts)
    class_places: dict[str, RowPlace] = dataclasses.field(default_factory=dict)
    has_several_labels: bool = False
    split_places: dict[str, RowPlace] = dataclasses.field(default_factory=dict)

    def merge(self, other: ListFacts) -> None:
        """Add the facts about other lists."""
        self.lists.update(other.lists)
        self.columns.merge(other.columns)
        for first_rows, other_rows in (
            (self.class_places, other.class_places),
            (self.split_places, other.split_places),
        ):
            for name, place in other_rows.items():
                first_rows[name] = min(place, first_rows.get(name, place))
        self.has_several_labels |= other.has_several_labels

    def first_blocks(self) -> dict[int, int]:
        """Return the index of each list's first block among the blocks of all lists, by index of the list."""
        return sum_blocks_before(self.lists)

    def check_splits(self) -> None:
        """Raise SourceError if rows write one split in two ways; the message names the first row of each."""
        first_spellings: dict[str, tuple[RowPlace, str]] = {}
        for place, spelling in sorted((place, spelling) for spelling, place in self.split_places.items()):
            split = find_listed_split(spelling)
            first_place, first_spelling = first_spellings.setdefault(split, (place, spelling))
            # `Train` and `train` are one spelling; `train` and `training` are two.
            if first_spelling.lower() != spelling.lower():
                raise SourceError(
                    f"{place}: split {spelling!r}, and {first_place} has {first_spelling!r}; both stand for {split}. Write one of"
                    " them, or name the splits otherwise."
                )

    def has_integer_labels(self, label_type: str | None) -> bool:
        """Return whether the labels are integers that stand for themselves.

        Args:
            label_type: `"int"` or `"str"` if it is declared, else None.

        Raises:
            SourceError: some labels are numbers, and not all are integers from 0; the message names the
                first row of each kind.
        """
        if label_type is not None:
            return label_type == INT
        if not any(map(is_number_label, self.class_places)):
            return False

        def find_first_label(*, is_integer: bool) -> tuple[RowPlace, str] | None:
            """Return the first row with a label of this kind, and the label; None if there is none."""
            labels = (
                (place, name) for name, place in self.class_places.items() if is_integer_label(name) == is_integer
            )
            return min(labels, default=None)

        first_other, first_integer = find_first_label(is_integer=False), find_first_label(is_integer=True)
        if first_other is None:
            return True
        place, label = first_other
        contrast = f" and {first_integer[0]} is {first_integer[1]!r}" if first_integer is not None else ""
        raise SourceError(
            f"{place}: label {label!r} is not a whole number from 0{contrast}. Correct it, or pass --label-type str to take all"
            " labels as names, numbered in their sorted order, or --label-type int to reject rows such as this one."
        )

    def make_labels(self, *, has_integers: bool, checks_classes: bool) -> Labels:
        """Return the classes: names in sorted order, or integers up to the largest.

        Args:
            has_integers: whether the labels are integers that stand for themselves.
            checks_classes: whether to check integers with `check_classes`; False if the lists may lack labels of the dataset,
                or a file names them.

        Raises:
            SourceError: `check_classes` rejects the integers; the message names the row of the largest label.
        """
        if not has_integers:
            return Labels(tuple(sorted(self.class_places)))
        # Other names are rejected when their rows are listed.
        numbers = [name for name in self.class_places if is_integer_label(name) and not is_too_large(name)]
        if numbers and checks_classes:
            largest_label = max(numbers, key=int)
            check_classes(int(largest_label), len(numbers), str(self.class_places[largest_label]))
        return make_integer_labels(numbers)
