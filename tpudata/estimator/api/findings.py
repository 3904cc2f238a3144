"""Findings of a rehearsal."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Finding:
    """Part of a program that a TPU would reject or run slowly.

    Attributes:
        mode: mode of the step that has it, a value of ModeKeys.
        where: location: a feature, a line of the program, or an argument.
        what: the problem, and why it matters.
        fix: advice on how to fix it; "" if `what` contains it.
        is_rejected: whether a TPU rejects it; False if it is only slow, or may need too much memory.
    """

    mode: str
    where: str
    what: str
    fix: str = ""
    is_rejected: bool = True

    def __str__(self) -> str:
        """Return the line "MODE: WHERE: WHAT. Fix: FIX."."""
        fix = f" Fix: {self.fix}." if self.fix else ""
        # `what` is a sentence without its full stop, or the message of an error, which may have one.
        what = f"{self.what.removesuffix('.')}."
        return f"{self.mode}: {self.where}: {what}{fix}"


class Report(Protocol):
    """Callback that adds a finding to the current mode."""

    def __call__(self, where: str, what: str, fix: str = "", *, is_rejected: bool = True) -> None:
        """Add a finding; the arguments are the fields of `Finding` after `mode`."""
