"""A base for sources of tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs.sources import Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneUnit(Source):
    """A source whose input is one unit: what derives from it lists references."""

    options: Any

    def parts(self) -> list[str]:
        return [self.options.input]

    def units(self, part: str, ignored: list[str]) -> list[str]:
        del ignored
        return [part]
