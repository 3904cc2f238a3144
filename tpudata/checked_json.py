"""JSON of files that may be damaged, edited or hostile, checked by a schema.

A schema says which types, ranges and keys a value has. Its `check` raises ValueError that names the field, such as
`splits.train.shards[0].records`; whoever reads the file adds the file's name.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

from tpudata.checks import format_bound
from tpudata.error_text.values import format_value
from tpudata.json_values import parse_input_json

NULL = type(None)
INT64_MAX = 2**63 - 1
# Maximum levels of a value without a schema: far fewer than Python's recursion limit, since printing and encoding it recurse.
_MAX_LEVELS = 32
_SHOWN_CHARACTERS = 60
_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NULL: "null",
}


def parse_json(data: bytes | str) -> Any:
    """Parse JSON text; ValueError with the reason if it is not JSON, or is JSON that is not accepted.

    JSON is not accepted if it is nested too deeply, has the words NaN or Infinity, or an integer of more than 4,300 digits.

    A number beyond the largest float, such as 1e999, becomes infinite; the schemas reject it.
    """
    return parse_input_json(data, _reject_constant)


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


class Schema(Protocol):
    """Rule for a JSON value."""

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value does not match.

        Args:
            field_path: the field, such as `splits.train.shards[0].records`; empty for the whole file, which only `Keys` accepts.
            value: what `parse_json` returned for it.
        """


@dataclasses.dataclass(frozen=True)
class Plain:
    """A value of one of several JSON types; true and false are not numbers.

    Attributes:
        types: the allowed types, as `parse_json` returns them.
        low: smallest integer that is allowed.
        high: largest integer that is allowed.
        pattern: regular expression that a string matches; None for any string.
        words: description of the strings that `pattern` matches, for the message.
    """

    types: tuple[type, ...]
    low: int = 0
    high: int = INT64_MAX
    pattern: re.Pattern[str] | None = None
    words: str = ""

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError for a value of a wrong type, out of range, not finite, or a string that `pattern` does not match."""
        if type(value) not in self.types:
            names = " or ".join(_NAMES[json_type] for json_type in self.types)
            raise ValueError(f"{field_path} is {abbreviate_value(value)}, not {names}")
        if type(value) is int and not self.low <= value <= self.high:
            bounds = f"{format_bound(self.low)} to {format_bound(self.high)}"
            raise ValueError(f"{field_path} is {abbreviate_value(value)}, not a number from {bounds}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field_path} is {value}, not a finite number")
        if isinstance(value, str) and self.pattern is not None and not self.pattern.fullmatch(value):
            raise ValueError(f"{field_path} is {abbreviate_value(value)}, not {self.words}")


TEXT, WHOLE, FLAG = Plain((str,)), Plain((int,)), Plain((bool,))
CRC32C = Plain((str,), pattern=re.compile(r"[0-9a-f]{8}"), words="eight lower-case hexadecimal digits")


@dataclasses.dataclass(frozen=True)
class Items:
    """A list of any length.

    Attributes:
        schema: schema of each item.
    """

    schema: Schema

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value is not a list, or an item does not match."""
        Plain((list,)).check(field_path, value)
        for index, item in enumerate(value):
            self.schema.check(f"{field_path}[{index}]", item)


@dataclasses.dataclass(frozen=True)
class FixedList:
    """A list of fixed length.

    Attributes:
        schemas: schema of each item, by its position.
    """

    schemas: tuple[Schema, ...]

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value is not a list of this length, or an item does not match."""
        Plain((list,)).check(field_path, value)
        if len(value) != len(self.schemas):
            raise ValueError(f"{field_path} is {abbreviate_value(value)}, not a list of {len(self.schemas)} values")
        for index, (schema, item) in enumerate(zip(self.schemas, value, strict=True)):
            schema.check(f"{field_path}[{index}]", item)


@dataclasses.dataclass(frozen=True)
class Entries:
    """An object with any keys.

    Attributes:
        schema: schema of each value.
        quotes_keys: whether messages quote the keys, as they must if a key may hold any character.
    """

    schema: Schema
    quotes_keys: bool = True

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value is not an object, or one of its values does not match."""
        Plain((dict,)).check(field_path, value)
        for key, entry in value.items():
            entry_path = f"{field_path}[{abbreviate_value(key)}]" if self.quotes_keys else f"{field_path}.{key}"
            self.schema.check(entry_path, entry)


@dataclasses.dataclass(frozen=True)
class Keys:
    """An object with known keys.

    Attributes:
        required: schema of each value that must be there.
        optional: schema of each value that may be missing.
        allows_unknown_keys: whether unknown keys are allowed.
        is_nullable: whether null is allowed instead of an object.
    """

    required: Mapping[str, Schema]
    optional: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    allows_unknown_keys: bool = False
    is_nullable: bool = False

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value is not an object, a key is missing or unknown, or a value does not match.

        An empty `field_path` names the whole file.
        """
        if value is None and self.is_nullable:
            return
        subject = field_path or "the file"
        Plain((dict, NULL) if self.is_nullable else (dict,)).check(subject, value)
        unknown_keys = (
            [] if self.allows_unknown_keys else sorted(value.keys() - self.required.keys() - self.optional.keys())
        )
        if unknown_keys:
            raise ValueError(f"{subject} has the unknown key {abbreviate_value(unknown_keys[0])}")
        prefix = f"{field_path}." if field_path else ""
        for key, schema in self.required.items():
            if key not in value:
                raise ValueError(f"{prefix}{key} is missing")
            schema.check(f"{prefix}{key}", value[key])
        for key, schema in self.optional.items():
            if key in value:
                schema.check(f"{prefix}{key}", value[key])


@dataclasses.dataclass(frozen=True)
class Anything:
    """Any value of at most 32 levels, with finite numbers."""

    def check(self, field_path: str, value: Any) -> None:
        """Raise ValueError if a value is nested in more than 32 levels, or a number in it is not finite."""
        values = [value]
        level = 0
        while values:
            if level > _MAX_LEVELS:
                raise ValueError(f"{field_path} is nested too deeply (more than {_MAX_LEVELS} levels)")
            for element in values:
                if isinstance(element, float) and not math.isfinite(element):
                    raise ValueError(f"{field_path} has the number {element}, not a finite one")
            values = [
                child
                for element in values
                if isinstance(element, dict | list)
                for child in (element.values() if isinstance(element, dict) else element)
            ]
            level += 1


def abbreviate_value(value: Any) -> str:
    """Return the first 60 characters of a value's repr, for a message; only its type if it is nested too deeply."""
    try:
        text = format_value(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
