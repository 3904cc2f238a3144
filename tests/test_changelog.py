"""CHANGELOG.md has the form of Keep a Changelog: known headings, one line an entry."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADINGS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_changelog_follows_keep_a_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("## [Unreleased]")
    sections: list[str] = []
    for line in filter(None, lines[start:]):
        if line.startswith("## "):
            assert re.fullmatch(r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?", line)
            sections = []
        elif line.startswith("### "):
            name = line.removeprefix("### ")
            assert name in HEADINGS
            assert name not in sections
            sections.append(name)
        else:
            assert re.fullmatch(r"- \S.*\.", line), line
            assert len(line) <= 120
    assert sections
