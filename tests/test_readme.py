"""The README is short, its links work, and each of its Python blocks runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from tests.helpers.markdown import ROOT, python_blocks, run_python


@pytest.fixture
def folder(digits_dataset: Path, tmp_path: Path) -> Path:
    """A working directory as `scripts/quickstart` leaves it."""
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "dataset").symlink_to(digits_dataset)
    return tmp_path


def test_readme_has_fewer_than_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_every_link_resolves() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > 20
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).is_file(), link
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [slugify(heading, "-") for heading in headings], link


def test_readme_has_the_two_blocks_tested_here() -> None:
    assert len(python_blocks("README.md")) == 2


def test_the_training_block_evaluates_after_the_last_step(folder: Path) -> None:
    block = python_blocks("README.md")[1]
    # The fixture has 200 training digits.
    out = run_python(block, folder, {"max_steps=500": "max_steps=20"})
    assert re.fullmatch(r"\{'accuracy': np\.float32\(0\.\d+\), .*'global_step': np\.int64\(20\)\}\n", out)


def test_the_plain_loop_prints_the_shape_in_its_comment(folder: Path) -> None:
    block = python_blocks("README.md")[0]
    shown = run_python(block, folder).rstrip()
    (comment,) = re.findall(r"# (\(128.*)$", block, flags=re.MULTILINE)
    assert comment == shown.replace("<dtype: '", "").replace("'>", "")
