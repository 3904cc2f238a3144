"""The extras of setup.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_tpu_extra_allows_the_supported_jax_versions() -> None:
    pytest.importorskip("jax")
    from tpudata.devices.spmd.stablehlo import JAX_VERSIONS

    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    found = re.search(r'^_JAX = ">=([\d.]+),<([\d.]+)"$', text, re.MULTILINE)
    assert found is not None
    first, end = (tuple(map(int, version.split("."))) for version in found.groups())
    assert (first, end) == (JAX_VERSIONS[0], JAX_VERSIONS[1][: len(end)])


@pytest.mark.parametrize("text", ["tensorflow-tpu", "TPUStrategy"])
def test_no_module_uses_tensorflows_tpu_runtime(text: str) -> None:
    files = [path for path in (ROOT / "tpudata").rglob("*") if path.suffix in (".py", ".txt")]
    assert [path.name for path in (*files, ROOT / "setup.py") if text in path.read_text(encoding="utf-8")] == []
