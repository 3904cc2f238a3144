from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tpudata.entry_points import load_entry_point
from tpudata.errors import MissingExtraError, UsageError
from tpudata.storage import storage_for


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere:Pets", "ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:Gone", "AttributeError: module 'broken' has no attribute 'Gone'"),
        ("faulty:Pets", "ZeroDivisionError: division by zero"),
    ],
)
def test_reports_the_name_of_an_entry_point_that_cannot_be_loaded(
    value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").touch()
    (tmp_path / "faulty.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.metadata.EntryPoint("pets", value, "tpudata.storages")
    wanted = rf"^the entry point pets = {value} of tpudata.storages cannot be loaded: {reason}\. Change its package"
    with pytest.raises(UsageError, match=wanted):
        load_entry_point(point)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    with pytest.raises(UsageError, match=wanted):
        storage_for("pets://here")


def test_lack_of_memory_is_not_reported_as_a_fault_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy.py").write_text("import numpy\nnumpy.empty(1 << 60, numpy.uint8)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MemoryError):
        load_entry_point(importlib.metadata.EntryPoint("a", "greedy:B", "tpudata.sources"))


def test_raises_our_own_errors_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy.py").write_text(
        "from tpudata.errors import MissingExtraError\nraise MissingExtraError('This', 'text')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError):
        load_entry_point(importlib.metadata.EntryPoint("a", "needy:B", "tpudata.sources"))
