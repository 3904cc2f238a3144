"""Notes about surprising inputs that a listing meets, counted by kind; the closing table has a line for each kind.

The manifest stores the lines by kind, so the names of kinds must not change.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

# Rows of text have columns that no field refers to; folders of text look like classes, but text has none; some files were
# recognized as lines, and some as rows.
COLUMNS, TEXT_FOLDERS, FOUND_LINES, FOUND_ROWS = "columns", "text_folders", "found_lines", "found_rows"
# Parquet files of images have extra columns; samples of a WebDataset have extra fields, or their classes in text files.
IMAGE_COLUMNS, SAMPLE_FIELDS, TEXT_CLASSES = "image_columns", "sample_fields", "text_classes"
# Annotations have values that are not stored.
ANNOTATION_VALUES = "annotation_values"
# Blanks were removed from labels of lists; several sets of IDX files become one split.
LABEL_BLANKS, IDX_SETS = "label_blanks", "idx_sets"

# Examples of a kind that are kept: the first in sorted order, so that the order of adding does not matter.
MAX_EXAMPLES = 9


class Note(Protocol):
    """Function that records a note about inputs."""

    def __call__(self, kind: str, example: str, count: int = 1) -> None:
        """Record that `count` inputs are of a kind, such as `example`."""


def ignore_note(kind: str, example: str, count: int = 1) -> None:
    """Ignore a note: the default of sources whose notes nobody reads."""
    del kind, example, count


class NotesOfKind(NamedTuple):
    """Notes of one kind.

    Attributes:
        input_count: number of inputs.
        examples: distinct examples, the first `MAX_EXAMPLES` in sorted order.
    """

    input_count: int
    examples: tuple[str, ...]


@dataclasses.dataclass
class Notes:
    """Notes by kind, independent of the order in which they were added.

    Attributes:
        kinds: notes by kind.
    """

    kinds: dict[str, NotesOfKind] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Add a note; see `Note`."""
        self._add(kind, NotesOfKind(count, (example,)))

    def merge(self, other: Notes) -> None:
        """Add the notes of another part of the input."""
        for kind, notes in other.kinds.items():
            self._add(kind, notes)

    def examples(self, kind: str) -> tuple[str, ...]:
        """Return the examples of a kind; an empty tuple if it was never noted."""
        return self.kinds[kind].examples if kind in self.kinds else ()

    def count(self, kind: str) -> int:
        """Return the number of inputs of a kind."""
        return self.kinds[kind].input_count if kind in self.kinds else 0

    def _add(self, kind: str, notes: NotesOfKind) -> None:
        """Add the inputs and examples of other notes of a kind."""
        previous = self.kinds.get(kind, NotesOfKind(0, ()))
        examples = previous.examples
        if not {*notes.examples} <= {*examples}:
            examples = tuple(sorted({*examples, *notes.examples})[:MAX_EXAMPLES])
        self.kinds[kind] = NotesOfKind(previous.input_count + notes.input_count, examples)
