"""Facts that whole lists are read for: those of each list are merged, in any order."""

from __future__ import annotations

import dataclasses

from beam_jobs.references.labels import Labels, check_classes, is_integer_label, make_integer_labels
from beam_jobs.sources.classes import MAX_INTEGER_LABEL, is_number_label
from beam_jobs.sources.lists.columns import ColumnFacts
from beam_jobs.sources.lists.place import RowPlace
from beam_jobs.sources.named_splits import find_listed_split
from beam_jobs.values.column_kinds import INT
from tpudata.errors import SourceError


@dataclasses.dataclass
class ListFacts:
    """Facts about the rows of some lists.

    Attributes:
        lists: by index of the list, its path and its number of blocks.
        columns: facts about the extra columns.
        names: the classes, each with the first row that has it.
        several: whether a row has a list of labels.
        splits: the names in the column of splits, each with the first row that has it.
    """

    lists: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    columns: ColumnFacts = dataclasses.field(default_factory=ColumnFacts)
    names: dict[str, RowPlace] = dataclasses.field(default_factory=dict)
    several: bool = False
    splits: dict[str, RowPlace] = dataclasses.field(default_factory=dict)

    def merge(self, other: ListFacts) -> None:
        """Add the facts about other lists."""
        self.lists.update(other.lists)
        self.columns.merge(other.columns)
        for mine, others in ((self.names, other.names), (self.splits, other.splits)):
            for name, row_place in others.items():
                mine[name] = min(row_place, mine.get(name, row_place))
        self.several |= other.several

    def first_blocks(self) -> dict[int, int]:
        """Return, by index of a list, the number of blocks of the lists before it."""
        before, firsts = 0, {}
        for number, (_, blocks) in sorted(self.lists.items()):
            firsts[number] = before
            before += blocks
        return firsts

    def check_splits(self) -> None:
        """Raise SourceError if rows write one split in two ways; names the first row of each."""
        first: dict[str, tuple[RowPlace, str]] = {}
        for place, split in sorted((place, split) for split, place in self.splits.items()):
            name = find_listed_split(split)
            other, before = first.setdefault(name, (place, split))
            if before.lower() != split.lower():
                raise SourceError(
                    f"{place}: split {split!r}, and {other} has {before!r}; both stand for {name}. Write one of them, or name the"
                    " splits otherwise."
                )

    def has_integers(self, label_type: str | None) -> bool:
        """Return whether the labels are whole numbers that stand for themselves.

        Args:
            label_type: `"int"` or `"str"` if it is declared.

        Raises:
            SourceError: some are numbers and some are not, or they are other numbers; names the first row of each.
        """
        if label_type is not None or not any(map(is_number_label, self.names)):
            return label_type == INT
        odd, good = (
            min(((place, name) for name, place in self.names.items() if is_integer_label(name) == fits), default=None)
            for fits in (False, True)
        )
        if odd is None:
            return True
        others = f" and {good[0]} is {good[1]!r}" if good is not None else ""
        raise SourceError(
            f"{odd[0]}: label {odd[1]!r} is not a whole number from 0{others}. Correct it, or pass --label-type str to take all"
            " labels as names, numbered in their sorted order, or --label-type int to reject rows such as this one."
        )

    def labels(self, integers: bool, are_all: bool) -> Labels:
        """Return the classes.

        Args:
            integers: they are whole numbers, which are labels themselves.
            are_all: they are all labels of the dataset.

        Raises:
            SourceError: one label makes almost all of the classes; names its row.
        """
        if not integers:
            return Labels(tuple(sorted(self.names)))
        # A larger one is rejected when its row is listed.
        numbers = [name for name in self.names if is_integer_label(name) and _fits(name)]
        if numbers and are_all:
            largest = max(numbers, key=int)
            check_classes(int(largest), len(numbers), str(self.names[largest]))
        return make_integer_labels(numbers)


def _fits(name: str) -> bool:
    return len(name) <= 7 and int(name) <= MAX_INTEGER_LABEL
