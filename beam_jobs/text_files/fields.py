"""Fields of rows: their names, and the kinds of their values in the records."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, LIST_KINDS, STR, ColumnKind
from tpudata.errors import UsageError

TEXT = "text"
TEXT_KINDS = (TEXT, STR)
FIELD_KINDS = (*TEXT_KINDS, INT, FLOAT, FLOAT32, *LIST_KINDS)
_KIND = re.compile(rf"(.+):((?:{'|'.join(FIELD_KINDS)})(?:=.*)?)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class TextField:
    """A field of the input that is stored in the records.

    Attributes:
        name: name of the field, and of the feature.
        kind: `"text"` is tokenized if there is a tokenizer; `"str"`, `"int"`, `"float"`, `"float32"` (which rounds) and the lists
            `"ints"`, `"floats"` and `"strings"` are stored unchanged.
        missing: value that is stored in place of a missing one; None rejects the document.

    Raises:
        UsageError: the name is empty or not UTF-8, or the kind is unknown.
    """

    name: str
    kind: str = TEXT
    missing: str | int | float | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("--field has no name (expected NAME or NAME:KIND, such as label:int)")
        if self.name.encode(errors="ignore").decode() != self.name:
            raise UsageError(f"--field {self.name!r}: names of features must be UTF-8. Rename the field")
        if self.kind not in FIELD_KINDS:
            raise UsageError(
                f"--field {self.name}: unknown kind (got {self.kind!r}, expected {', '.join(FIELD_KINDS)})"
            )

    @classmethod
    def parse(cls, text: str) -> TextField:
        """Parse `NAME`, `NAME:KIND` or `NAME:KIND=VALUE`, where VALUE replaces a missing value.

        A colon before anything but a kind belongs to the name.

        Raises:
            UsageError: the name is empty or not UTF-8, or VALUE does not fit the kind or is for a list.
        """
        match = _KIND.fullmatch(text)
        if not match:
            return cls(text)
        name, kind = match.groups()
        kind_name, equals, default = kind.partition("=")
        if kind_name in LIST_KINDS and equals:
            raise UsageError(f"--field {text}: a list field takes no default for missing values. Omit ={default}")
        try:
            return cls(name, *ColumnKind.parse(kind))
        except ValueError as error:
            raise UsageError(f"--field {text}: {error}") from None


def fields_to_json(fields: Iterable[TextField]) -> dict[str, str]:
    """Return the kind of each field by name, with the value for missing ones, such as `int=0`, for the manifest."""
    return {field.name: str(ColumnKind(field.kind, field.missing)) for field in fields}


def fields_from_json(kinds: Mapping[str, str]) -> list[TextField]:
    """Return the fields that `fields_to_json` wrote; ValueError or UsageError if a kind is unknown."""
    return [TextField(name, *ColumnKind.parse(kind)) for name, kind in kinds.items()]
