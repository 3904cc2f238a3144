"""scripts/_words.py finds words to avoid in pages and programs."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str], list[str]]:
    """Return a function from a file's name and text to the findings in it."""
    module: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "_words.py"))
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    glossary = (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8")
    (tmp_path / "docs" / "concepts" / "glossary.md").write_text(glossary, encoding="utf-8")
    main: Callable[[list[str]], int] = module["main"]
    main.__globals__["ROOT"] = tmp_path

    def findings(name: str, text: str) -> list[str]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        code = main([name])
        lines = capsys.readouterr().out.splitlines()
        assert code == bool(lines)
        return lines

    return findings


def test_finds_words_in_prose_but_not_in_code(check: Callable[[str, str], list[str]]) -> None:
    page = "Put it beside the shard.\n\n    beside = 1\n\n```\nrefused\n```\n\nThe flag `--refuse` is kept.\n"
    assert check("page.md", page) == ["page.md:1: 'beside': write next to"]


def test_suggests_terms_of_the_glossary(check: Callable[[str, str], list[str]]) -> None:
    assert check("page.md", "After growing waits.\n") == ["page.md:1: 'growing waits': write backoff"]


def test_finds_words_in_python_strings_and_comments(check: Callable[[str, str], list[str]]) -> None:
    program = '''"""Opens a file.

It is passed over.
"""
mend = 1  # No word of ours.
raise ValueError(f"{mend} was refused")  # Left out.
'''
    assert check("program.py", program) == [
        "program.py:6: 'Left out': write omit, skip",
        "program.py:3: 'passed over': write skipped, ignored",
        "program.py:6: 'refused': write reject",
    ]


def test_rejects_say_before_a_flag(check: Callable[[str, str], list[str]]) -> None:
    program = 'raise ValueError("no labels: say"\n " --unlabelled")\n'
    assert check("program.py", program) == ["program.py:1: 'say --unlabelled': write use --x, pass --x"]


def test_reports_prose_wider_than_100_columns(check: Callable[[str, str], list[str]]) -> None:
    wide = "a word " * 15
    assert check("page.md", f"{wide}\n") == ["page.md:1: 105 characters: wrap at 100"]
    assert check("page.md", f"| {wide} |\n\n    {wide}\n\n{'x' * 120}\n") == []
