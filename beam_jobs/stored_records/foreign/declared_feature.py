"""Features of foreign records that are declared: `--feature NAME=KIND[:SHAPE]`."""

from __future__ import annotations

import dataclasses
import math
import re

from beam_jobs.values.column_kinds import FLOAT, INT, LIST_KINDS, STR, get_item_kind
from tpudata.errors import FeatureError, UsageError
from tpudata.format import Feature
from tpudata.format.example.wire import Value

_BYTES = "bytes"
# By kind: the list of the Example, the dtype and the encoding.
_KINDS: dict[str, tuple[str, str, str | None]] = {
    INT: ("int64", "int64", None),
    FLOAT: ("float", "float32", None),
    STR: ("bytes", "string", "utf8"),
    _BYTES: ("bytes", "string", None),
}
_TYPES = {"int64": int, "float": float, "bytes": bytes}
_WORDS = {int: "integers", float: "floats", bytes: "bytes"}
# A size that varies between records.
_ANY_SIZE = "N"
# Without bounds, int() would raise ValueError for 4,301 digits.
_SHAPE = re.compile(rf"({_ANY_SIZE}|[1-9]\d{{0,17}})(x[1-9]\d{{0,17}})*")


@dataclasses.dataclass(frozen=True)
class DeclaredFeature:
    """A feature of foreign records whose kind and shape are given.

    Attributes:
        name: name of the feature.
        text: its kind and shape as they were passed.
        feature: the feature as the manifest describes it.
    """

    name: str
    text: str
    feature: Feature

    @classmethod
    def parse(cls, text: str) -> DeclaredFeature:
        """Parse `NAME=KIND` or `NAME=KIND:SHAPE`, whose first size may be N.

        Raises:
            UsageError: `text` has another form.
        """
        name, equals, declaration = text.rpartition("=")
        kind, colon, sizes = declaration.partition(":")
        is_list = kind in LIST_KINDS
        # A kind of lists, such as floats, stands for any number of values, so it takes no shape.
        if not name or not equals or (is_list and colon) or (colon and not _SHAPE.fullmatch(sizes)):
            raise _make_declaration_error(text)
        shape: list[int | None] = []
        if colon:
            shape = [None if size == _ANY_SIZE else int(size) for size in sizes.split("x")]
        try:
            example_list, dtype, encoding = _KINDS[get_item_kind(kind)]
            feature = Feature(name, example_list, dtype, (None,) if is_list else tuple(shape), encoding)
            return cls(name, declaration, feature)
        except (KeyError, FeatureError):
            raise _make_declaration_error(text) from None

    def check(self, values: Value, list_kind: str = "") -> None:
        """Raise ValueError if the values of a record do not have the declared kind and shape, or a string is not UTF-8.

        Args:
            values: values of the feature; empty if the record lacks it.
            list_kind: kind of the list if it is empty; "" if the record does not show it.
        """
        expected_type = _TYPES[self.feature.kind]
        wrong_value = next((value for value in values if not isinstance(value, expected_type)), None)
        problem = ""
        if wrong_value is not None:
            problem = f"has {_WORDS[type(wrong_value)]}"
        elif list_kind not in ("", self.feature.kind):
            problem = f"has an empty list of {_WORDS[_TYPES[list_kind]]}"
        elif not self._fits_shape(len(values)):
            problem = f"has {len(values)} values" if values else "is missing"
        elif self.feature.encoding == "utf8" and not all(
            isinstance(value, bytes) and is_utf8_bytes(value) for value in values
        ):
            problem = "has bytes that are not UTF-8"
        if problem:
            raise ValueError(f"feature {self.name!r} {problem} (expected {self.text}, as --feature declares it)")

    def _fits_shape(self, count: int) -> bool:
        """Return whether `count` values fill the shape; if one size varies, every multiple of the other sizes' product does."""
        shape = self.feature.shape
        fixed_size = math.prod(size for size in shape if size is not None)
        return count % fixed_size == 0 if None in shape else count == fixed_size


def _make_declaration_error(text: str) -> UsageError:
    """Return the error of a value of --feature that is not a declaration."""
    return UsageError(
        f"--feature {text!r} declares no feature (expected NAME=KIND or NAME=KIND:SHAPE, KIND one of {', '.join(_KINDS)},"
        f" {', '.join(LIST_KINDS)}, such as boxes=float:Nx4)"
    )


def is_utf8_bytes(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
