"""Notes about surprising inputs that a listing meets, counted by kind; the closing table has a line for each kind.

A kind is a name that does not change, since the manifest has the lines by it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

# Rows of text have columns that no field names; its folders look like classes, which text does not have; files are found to be
# lines, and others rows.
COLUMNS, TEXT_FOLDERS, FOUND_LINES, FOUND_ROWS = "columns", "text_folders", "found_lines", "found_rows"
# Parquet files with images have extra columns; samples of a WebDataset extra fields, or their classes in text files.
IMAGE_COLUMNS, SAMPLE_FIELDS, TEXT_CLASSES = "image_columns", "sample_fields", "text_classes"
# Annotations have values that are not stored.
ANNOTATION_VALUES = "annotation_values"
# Blanks were removed from labels of lists; several sets of IDX files become one split.
LABEL_BLANKS, IDX_SETS = "label_blanks", "idx_sets"

# The smallest ones are kept, so that the order of adding does not matter.
MOST_EXAMPLES = 9


class Note(Protocol):
    """Function that takes a note: its kind, an example, and the number of inputs it is about."""

    def __call__(self, kind: str, example: str, count: int = 1) -> None:
        """Take a note."""


def ignore_note(kind: str, example: str, count: int = 1) -> None:
    """Take a note that nobody reads."""
    del kind, example, count


class NotesOfKind(NamedTuple):
    """Notes of one kind.

    Attributes:
        inputs: number of inputs that it was noted of.
        examples: the first different examples in order, `MOST_EXAMPLES` at most.
    """

    inputs: int
    examples: tuple[str, ...]


@dataclasses.dataclass
class Notes:
    """Notes by kind; adding them in another order gives the same.

    Attributes:
        kinds: notes by kind.
    """

    kinds: dict[str, NotesOfKind] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Add a note; see `Note`."""
        self._add(kind, NotesOfKind(count, (example,)))

    def merge(self, other: Notes) -> None:
        """Add the notes of another part of the input."""
        for kind, noted in other.kinds.items():
            self._add(kind, noted)

    def examples(self, kind: str) -> tuple[str, ...]:
        """Return the examples of a kind."""
        return self.kinds[kind].examples if kind in self.kinds else ()

    def count(self, kind: str) -> int:
        """Return the number of inputs that a kind was noted of."""
        return self.kinds[kind].inputs if kind in self.kinds else 0

    def _add(self, kind: str, noted: NotesOfKind) -> None:
        before = self.kinds.get(kind, NotesOfKind(0, ()))
        examples = before.examples
        if not {*noted.examples} <= {*examples}:
            examples = tuple(sorted({*examples, *noted.examples})[:MOST_EXAMPLES])
        self.kinds[kind] = NotesOfKind(before.inputs + noted.inputs, examples)
