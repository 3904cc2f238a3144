"""Values of options that several commands parse: shares of splits, a budget of bad records, sizes."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.reference import HASH_BITS, split_position
from tpudata.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# Without bounds, int() would raise ValueError for 4,301 digits.
_SIZE = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?)\s*(?P<unit>[A-Za-z]*)")
# Without bounds, 1e999999999 would become a number with a billion digits.
_NUMBER = re.compile(r"(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,3})?|\d{1,30}/\d{1,30}", re.ASCII | re.IGNORECASE)
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class SplitShares:
    """Assignment of records to splits.

    Attributes:
        shares: fraction of the records by split name; together 1.
    """

    shares: Mapping[str, Fraction]

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            self.check_name(name)
            if share <= 0:
                raise UsageError(f"share of split {name}: out of range (got {share}, expected more than 0)")
        if sum(self.shares.values()) != 1:
            raise UsageError(f"the shares of the splits do not add up to 1 (got {_shorten(sum(self.shares.values()))})")

    @staticmethod
    def check_name(name: Any) -> None:
        """Raise UsageError if a name cannot be a split's."""
        if not isinstance(name, str) or not _SPLIT_NAME.fullmatch(name):
            raise UsageError(f"split name {name!r}: invalid (expected letters, digits and _, a letter first)")

    @classmethod
    def parse(cls, text: str) -> SplitShares:
        """Parse `train=0.9,validation=0.1`.

        Raises:
            UsageError: `text` has another form, a name is invalid or repeated, a share is 0, or they do not add up to 1.
        """
        shares: dict[str, Fraction] = {}
        for part in text.split(","):
            name, _, share = part.partition("=")
            try:
                fraction = _parse_fraction(share)
            except (ValueError, ZeroDivisionError):
                raise UsageError(f"{part!r}: not a share (expected NAME=SHARE, such as train=0.9)") from None
            if name.strip() in shares:
                raise UsageError(f"split {name.strip()} is named twice. Name it once")
            shares[name.strip()] = fraction
        return cls(shares)

    @classmethod
    def from_json(cls, shares: Mapping[str, str]) -> SplitShares:
        """Return the shares that a manifest states; UsageError if `parse` rejects them."""
        return cls.parse(",".join(f"{name}={share}" for name, share in shares.items()))

    def to_json(self) -> dict[str, str]:
        """Return the shares for the manifest."""
        return {name: str(share) for name, share in self.shares.items()}

    def assign_split(self, digest: int) -> str:
        """Return the split of a record, which depends only on the digest of its key: a record never moves to another split."""
        return list(self.shares)[bisect_right(self._list_ends(), split_position(digest))]

    def assign_splits(self, positions: npt.NDArray[np.uint64]) -> list[str]:
        """Return the split of each record, given the high halves of the digests of their keys: uint64 [n]."""
        names = list(self.shares)
        indices = np.searchsorted(np.array(self._list_ends(), np.uint64), positions, side="right")
        return [names[index] for index in indices.tolist()]

    def _list_ends(self) -> list[int]:
        """Return where each split but the last ends, in the range of `split_position`: its cumulative share of 2**64."""
        ends = []
        end = Fraction(0)
        for share in list(self.shares.values())[:-1]:
            end += share
            ends.append(int(end * 2**HASH_BITS))
        return ends


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limit of tolerated bad records.

    Attributes:
        count: maximum number of bad records; None if `share` is the limit.
        share: maximum fraction of all records that may be bad; None if `count` is the limit.
    """

    count: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a count such as `100` or a share such as `0.5%`; UsageError if `text` is neither."""
        is_percentage = text.strip().endswith("%")
        number: Fraction | None
        try:
            number = _parse_fraction(text.strip().removesuffix("%"))
        except (ValueError, ZeroDivisionError):
            number = None
        # A share is at most 100 %, and a count is an integer.
        if number is None or (is_percentage and number > 100) or (not is_percentage and number.denominator != 1):
            raise UsageError(f"{text!r}: not a limit (expected a count such as 100 or a share such as 0.5%)")
        return cls(share=number / 100) if is_percentage else cls(count=int(number))

    def allows(self, rejected_count: int, record_count: int) -> bool:
        """Return whether `rejected_count` bad records are tolerated among `record_count` records, which include them."""
        return rejected_count <= (self.count if self.count is not None else (self.share or 0) * record_count)

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{float((self.share or 0) * 100):g}%"


def parse_size(text: str) -> int:
    """Parse a size in bytes such as `100MB` (10^6), `64MiB` (2^20) or `5000000`.

    Raises:
        UsageError: `text` is not a size, or the size is less than one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match["unit"].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r}: not a size (expected a number of bytes, or a size such as 100MB or 64MiB)")
    size = int(Fraction(match["number"]) * unit)
    if size < 1:
        raise UsageError(f"{text!r}: size out of range (expected 1 byte or more)")
    return size


DEFAULT_BUDGET = Budget(share=Fraction(1, 100))


def _parse_fraction(text: str) -> Fraction:
    """Return the number in a share or a count, 0 or more; ValueError if `text` is not a number, ZeroDivisionError for 1/0."""
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a number")
    return Fraction(text)


def _shorten(value: Fraction | int) -> str:
    """Return a number other than 1 for a message; `1e400` is valid input that does not fit a float."""
    if value >= Fraction(10**9):
        return "more than 10^9"
    # A sum such as 0.9999999 needs more than the usual 6 digits to differ from 1, and 1 + 1e-400 more than a float has.
    texts = (f"{float(value):.{digits}g}" for digits in (6, 15))
    return next((text for text in texts if text != "1"), f"slightly {'more' if value > 1 else 'less'} than 1")
