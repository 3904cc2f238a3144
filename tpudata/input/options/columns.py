"""Options that choose what is read of each record, checked at the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy.typing as npt

from tpudata.checks import check_argument
from tpudata.errors import UsageError
from tpudata.input.options.pad import Pad, parse_pads


@dataclasses.dataclass(frozen=True)
class FeatureOptions:
    """Arguments of `make_input_fn` that choose what is read of each record; it documents them.

    Raises:
        UsageError: an argument is of the wrong type, or does not fit another one.
    """

    features: str | None = None
    extra_features: Sequence[str] = ()
    pad: Mapping[str, int | Pad | None] | None = None
    label: str | None = None
    defaults: Mapping[str, npt.ArrayLike] | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        extra = self.extra_features
        if isinstance(extra, str):
            raise UsageError(f"extra_features={extra!r}: pass a sequence of names, such as ({extra!r},).")
        are_names = isinstance(extra, Sequence) and all(isinstance(name, str) for name in extra)
        check_argument("extra_features", extra, are_names, "a sequence of names, such as ('image/filename',)")
        for name in ("label", "weight"):
            value = getattr(self, name)
            is_name = value is None or (isinstance(value, str) and value != "")
            check_argument(name, value, is_name, "the name of a feature, such as 'image/class/label', or None")
        if self.weight is not None and self.weight == self.label:
            raise UsageError(f"weight={self.weight!r}: it is the label, too. Name another feature.")
        defaults = {} if self.defaults is None else self.defaults
        are_named = isinstance(defaults, Mapping) and all(isinstance(name, str) for name in defaults)
        check_argument("defaults", defaults, are_named, 'a dict of values by name, such as {"age": -1}')
        # Called only for its checks; the property `pads` parses the argument again.
        parse_pads(self.pad)
        for name in ("extra_features", "pad"):
            if self.features is not None and getattr(self, name):
                raise UsageError(
                    f"features={self.features!r} asks for a bare tensor, which has no place for {name}. Omit one of them."
                )

    @property
    def pads(self) -> dict[str, Pad]:
        """The lists to pad, by name or pattern."""
        return parse_pads(self.pad)

    @property
    def selection(self) -> dict[str, object]:
        """The arguments that the caller passed and that are not empty, by name."""
        return {field.name: value for field in dataclasses.fields(self) if (value := getattr(self, field.name))}
