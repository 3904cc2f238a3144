"""Findings of a rehearsal."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Finding:
    """Part of a program that a TPU would reject or run slowly.

    Attributes:
        mode: the value of ModeKeys whose step it is in.
        where: place of the finding: a feature, a line of the program, an argument.
        what: the problem, and why it matters.
        fix: what to do about it; "" if `what` tells.
        is_rejected: whether a TPU rejects it; False if it is only slow, or may need too much memory.
    """

    mode: str
    where: str
    what: str
    fix: str = ""
    is_rejected: bool = True

    def __str__(self) -> str:
        fix = f" Fix: {self.fix}." if self.fix else ""
        what = self.what if self.what.endswith(".") else f"{self.what}."
        return f"{self.mode}: {self.where}: {what}{fix}"


class Report(Protocol):
    """Callback that adds a finding to the current mode."""

    def __call__(self, where: str, what: str, fix: str = "", *, is_rejected: bool = True) -> None:
        """Report a finding; arguments as in Finding."""
