"""Installing a class of a test as the source or tokenizer of a package."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest


class _Point(importlib.metadata.EntryPoint):
    """An entry point that names a value of this process."""

    def load(self) -> Any:
        return _values[self.group, self.name]


_values: dict[tuple[str, str], Any] = {}


def install(monkeypatch: pytest.MonkeyPatch, group: str, **values: Any) -> None:
    """Make values the only entry points of installed packages.

    Args:
        monkeypatch: removes them at the end of the test.
        group: their group, such as `"tpudata.sources"`.
        **values: each by its name; classes of sources are at the top of their module, since they are pickled.
    """
    points = [_Point(name, f"{value!r}", group) for name, value in values.items()]
    for name, value in values.items():
        monkeypatch.setitem(_values, (group, name), value)

    def entry_points(**chosen: str) -> list[importlib.metadata.EntryPoint]:
        return [point for point in points if all(getattr(point, key) == value for key, value in chosen.items())]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
