"""`Pad`: the length to which lists are padded, and what padding is."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from tpudata.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Pad:
    """Padding of lists whose length varies between records: the values of `make_input_fn(pad=...)`.

    Attributes:
        length: entries that are fed of each record; None for as many as the longest list has, if the dataset's manifest says so.
        value: value of padding, for the features of its type: an integer for all numbers, a float for floats, str or bytes for
            strings. Other features, and all with None, have 0, 0.0 and b"".
        cut: whether a longer list loses its last entries instead of raising an error.

    Raises:
        UsageError: an attribute is out of range or of another type.
    """

    length: int | None = None
    value: int | float | str | bytes | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        length = self.length
        if length is not None:
            if isinstance(length, bool) or not hasattr(length, "__index__") or not 1 <= operator.index(length) < 2**31:
                raise UsageError(
                    f"Pad.length: invalid value (got {length!r}, expected an integer from 1 to 2**31 - 1)."
                )
            object.__setattr__(self, "length", operator.index(length))
        if isinstance(self.value, bool) or not isinstance(self.value, int | float | str | bytes | None):
            raise UsageError(f"Pad.value: invalid value (got {self.value!r}, expected a number, str, bytes or None).")
        if not isinstance(self.cut, bool):
            raise UsageError(f"Pad.cut: invalid value (got {self.cut!r}, expected True or False).")


def parse_pads(pad: Any) -> dict[str, Pad]:
    """Return the argument `pad` of `make_input_fn` as Pads by name or pattern; a number, or None, is the length of one.

    Raises:
        UsageError: it is no such mapping.
    """
    if pad is None:
        return {}
    if not isinstance(pad, Mapping) or not all(isinstance(name, str) and name for name in pad):
        raise UsageError(f'pad={pad!r}: pass a dict of names, such as {{"image/object/*": 100}}.')
    found = {}
    for name, value in pad.items():
        is_length = value is None or (hasattr(value, "__index__") and not isinstance(value, bool))
        if not isinstance(value, Pad) and not is_length:
            raise UsageError(
                f"pad: invalid value of {name!r} (got {value!r}, expected a number, None or tpudata.Pad(...))."
            )
        found[name] = value if isinstance(value, Pad) else Pad(value)
    return found
