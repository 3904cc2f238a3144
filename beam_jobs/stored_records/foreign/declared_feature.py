"""Features of foreign records that are declared: `--feature NAME=KIND[:SHAPE]`."""

from __future__ import annotations

import dataclasses
import math
import re

from beam_jobs.values.column_kinds import FLOAT, INT, LIST_KINDS, STR
from tpudata.errors import FeatureError, UsageError
from tpudata.format import Feature
from tpudata.format.example.wire import Value

_BYTES = "bytes"
# List of the Example, dtype and encoding, by kind.
_KINDS: dict[str, tuple[str, str, str | None]] = {
    INT: ("int64", "int64", None),
    FLOAT: ("float", "float32", None),
    STR: ("bytes", "string", "utf8"),
    _BYTES: ("bytes", "string", None),
}
_TYPES = {"int64": int, "float": float, "bytes": bytes}
_WORDS = {int: "integers", float: "floats", bytes: "bytes"}
# A size that varies.
_ANY = "N"
_SHAPE = re.compile(rf"({_ANY}|[1-9]\d*)(x[1-9]\d*)*")


@dataclasses.dataclass(frozen=True)
class DeclaredFeature:
    """A feature of foreign records whose kind and shape are given.

    Attributes:
        name: name of the feature.
        text: its kind and shape as they were given.
        feature: the feature as the manifest has it.
    """

    name: str
    text: str
    feature: Feature

    @classmethod
    def parse(cls, text: str) -> DeclaredFeature:
        """Parse `NAME=KIND` or `NAME=KIND:SHAPE`, whose first size may be N.

        Raises:
            UsageError: the text has another form.
        """
        name, equals, declared = text.rpartition("=")
        kind, colon, sizes = declared.partition(":")
        is_list = kind in LIST_KINDS
        if not name or not equals or (is_list and colon) or (colon and not _SHAPE.fullmatch(sizes)):
            raise _make_declaration_error(text)
        shape: list[int | None] = [None if size == _ANY else int(size) for size in sizes.split("x")] if colon else []
        try:
            stored, dtype, encoding = _KINDS[LIST_KINDS.get(kind, kind)]
            return cls(name, declared, Feature(name, stored, dtype, (None,) if is_list else tuple(shape), encoding))
        except (KeyError, FeatureError):
            raise _make_declaration_error(text) from None

    def check(self, values: Value) -> None:
        """Raise ValueError if the values of a record are of a different kind or number.

        Args:
            values: values of the feature; none if the record lacks it.
        """
        odd = next((value for value in values if not isinstance(value, _TYPES[self.feature.kind])), None)
        problem = ""
        if odd is not None:
            problem = f"has {_WORDS[type(odd)]}"
        elif not self._fits(len(values)):
            problem = f"has {len(values)} values" if values else "is not there"
        elif self.feature.encoding == "utf8" and not all(map(_is_utf8, values)):
            problem = "has bytes that are not UTF-8"
        if problem:
            raise ValueError(f"feature {self.name!r} {problem} (expected {self.text}, as --feature declares it)")

    def _fits(self, count: int) -> bool:
        shape = self.feature.shape
        entry_size = math.prod(size for size in shape if size is not None)
        return count % entry_size == 0 if None in shape else count == entry_size


def _make_declaration_error(text: str) -> UsageError:
    return UsageError(
        f"--feature {text!r} declares no feature (expected NAME=KIND or NAME=KIND:SHAPE, KIND one of {', '.join(_KINDS)},"
        f" {', '.join(LIST_KINDS)}, such as boxes=float:Nx4)"
    )


def _is_utf8(value: object) -> bool:
    try:
        return isinstance(value, bytes) and value.decode() is not None
    except UnicodeDecodeError:
        return False
