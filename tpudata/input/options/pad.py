"""`Pad`: the length to which lists are padded, and what padding is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tpudata.checks import check, check_argument, check_flag, check_integer, convert_integers, is_integer
from tpudata.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Pad:
    """Padding of lists whose length varies between records: the values of `make_input_fn(pad=...)`.

    Attributes:
        length: number of entries that are fed of each record; None for as many as the longest list has, if the manifest has its
            length.
        value: value of padding, for the features of its type: an integer for all numbers, a float for floats, str or bytes for
            strings. Other features are padded with 0, 0.0 or b""; None pads every feature that way.
        cut: whether a longer list loses its last entries instead of raising an error.

    Raises:
        UsageError: an attribute is out of range or of the wrong type.
    """

    length: int | None = None
    value: int | float | str | bytes | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        check_integer("Pad.length", self.length, 1, 2**31 - 1, or_none=True)
        if is_integer(self.value):
            convert_integers(self, "value")
        is_value = isinstance(self.value, int | float | str | bytes | None) and not isinstance(self.value, bool)
        check("Pad.value", self.value, is_value, "a number, str, bytes or None")
        convert_integers(self, "length")
        check_flag("Pad.cut", self.cut)


def parse_pads(pad: Mapping[str, int | Pad | None] | None) -> dict[str, Pad]:
    """Return the argument `pad` of `make_input_fn` with a `Pad` for each key; a number or None becomes a `Pad` of this length.

    Raises:
        UsageError: `pad` is not a dict of names, or a value is neither a length of 1 or more, None nor a Pad.
    """
    if pad is None:
        return {}
    are_names = isinstance(pad, Mapping) and all(isinstance(name, str) and name for name in pad)
    check_argument("pad", pad, are_names, 'a dict of names, such as {"image/object/*": 100}')
    pads = {}
    for name, length_or_pad in pad.items():
        if not isinstance(length_or_pad, Pad) and length_or_pad is not None and not is_integer(length_or_pad):
            raise UsageError(
                f"pad: invalid value of {name!r} (got {length_or_pad!r}, expected a number, None or tpudata.Pad(...))."
            )
        pads[name] = length_or_pad if isinstance(length_or_pad, Pad) else Pad(length_or_pad)
    return pads
