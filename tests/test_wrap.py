"""scripts/_wrap.py: pages get narrower, and render as before."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import markdown
import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
wrapped: Callable[[str], str] = runpy.run_path(str(ROOT / "scripts" / "_wrap.py"))["wrap"]


def rendered(text: str) -> str:
    """Return a page as HTML, with one space for any white space: code blocks aside, HTML means the same by it."""
    return re.sub(r"\s+", " ", markdown.markdown(text, extensions=["tables", "fenced_code"]))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_renders_as_before(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert rendered(wrapped(text)) == rendered(text)
    assert wrapped(wrapped(text)) == wrapped(text)


def test_wraps_paragraphs_and_lists_but_no_code_or_tables() -> None:
    word = "word " * 30
    text = f"# {word}\n\n{word}\n- {word}\n  goes on\n1. {word}\n\n    {word}\n\n```\n{word}\n```\n| {word} |\n"
    lines = wrapped(text).splitlines()
    wide = [line for line in lines if len(line) > 100]
    assert [line[:6] for line in wide] == ["# word", "    wo", "word w", "| word"]
    assert sum("goes on" in line and line.startswith("  ") for line in lines) == 1


def test_breaks_no_inline_code() -> None:
    text = "word " * 18 + "`tpudata convert images` goes on"
    assert wrapped(text).splitlines() == [("word " * 18).strip(), "`tpudata convert images` goes on"]


def test_starts_no_line_with_a_list_marker() -> None:
    text = "word " * 19 + "1234 - 1 is a difference"
    assert wrapped(text).splitlines() == [("word " * 19).strip(), "1234 - 1 is a difference"]
