"""Fixtures of conversions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.run.prism import find_prism
from tpudata.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def prism() -> list[str]:
    """The flags of Beam's engine Prism; building it takes minutes, once."""
    try:
        return ["--runner=prism", f"--prism_location={find_prism()}"]
    except UsageError as error:
        pytest.skip(f"no Prism: {error}")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of docs/convert/extending.md, installed: its module, and the metadata with its entry points."""
    page = (ROOT / "docs" / "convert" / "extending.md").read_text()
    site = tmp_path / "site"
    metadata = site / "pets-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "pets.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert toml.count("[project.entry-points.") == 4
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pets\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(_entry_points(toml)))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)


def _entry_points(toml: str) -> Iterator[str]:
    """Yield the lines of entry_points.txt."""
    for group, entries in re.findall(r'\[project\.entry-points\."(.*?)"\]\n((?:\w+ = ".*?"\n)+)', toml):
        yield f"[{group}]"
        yield from (line.replace('"', "") for line in entries.splitlines())
