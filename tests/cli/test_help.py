"""`tpudata help`, and the layout of the help of all commands.

Tests read the private table of commands, to cover each one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.markdown import ROOT
from tpudata.cli import COMMANDS, main
from tpudata.cli.convert import KINDS

PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("*/*.md"))
WORDS = [[name] for name in COMMANDS if name != "convert"] + [["convert", kind] for kind in KINDS]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Function that runs a command and returns what it prints."""

    def run(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    return run


def test_lists_all_pages_with_their_titles(shown: Callable[..., str]) -> None:
    listed = re.findall(r"(?m)^  (\S+)  +(\S.*)$", shown("help"))
    assert len(listed) == len(PAGES)
    assert ("sources", "Sources of images") in listed
    # Each listed name prints its page.
    for name, title in listed[:: len(listed) // 8]:
        if name not in COMMANDS:
            assert shown("help", name).startswith(f"# {title}\n")


@pytest.mark.parametrize("name", ["reference/sources", "sources", "docs/reference/sources.md"])
def test_prints_a_page_under_each_of_its_names(name: str, shown: Callable[..., str]) -> None:
    text = shown("help", name)
    assert text.startswith("# Sources of images\n")
    assert "converting text (tpudata help convert/text)" in text


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_pages_refer_only_to_pages_of_the_installation(page: Path, shown: Callable[..., str]) -> None:
    text = shown("help", page.with_suffix("").as_posix())
    assert re.search(r"\]\((?!https?:)[^)\s]*\.(md|svg|png)", text) is None
    names = {name for path in PAGES for name in (path.stem, path.with_suffix("").as_posix())} | {
        *COMMANDS,
        "COMMAND",
        "PAGE",
    }
    assert set(re.findall(r"\(tpudata help ([^)]*)\)", text)) <= names


def test_lists_the_pages_that_share_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "text"]) == 2
    said = "'text' is several pages. See: tpudata help convert/text, tpudata help feed/text"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "page"),
    [("coco", "datasets"), ("Killed", "dataflow"), ("slow", "troubleshooting"), ("bert", "porting")],
)
def test_lists_the_pages_that_mention_a_word(word: str, page: str, shown: Callable[..., str]) -> None:
    first, *lines = shown("help", word).splitlines()
    assert first.startswith(f"'{word}' is on ")
    assert page in [line.split()[0] for line in lines]
    assert len(lines) <= 8


def test_names_the_package_that_is_missing_for_the_help_of_a_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "beam_jobs.sources.installed.installed_sources", None)
    assert main(["help", "no-such-word"]) == 2
    assert "The help of a source needs Apache Beam, which is not installed." in capsys.readouterr().err


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_help_fits_the_terminal_and_names_existing_pages(
    words: list[str], shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = shown(*words, "--help")
        # Only a flag itself may be longer.
        lines = text.partition("\n\n")[2].splitlines()
        assert [line for line in lines if len(line) > columns and " " in line.strip()] == []
    usage, *_ = text.partition("\n\n")
    assert usage.startswith(f"usage: tpudata {' '.join(words)}")
    assert usage.endswith("[FLAGS]")
    assert "docs/" not in text
    for page in re.findall(r"tpudata help ([\w/]+)", " ".join(text.partition("\nMore: ")[2].split())):
        assert shown("help", page).startswith("# ")


def test_long_commands_group_their_flags(shown: Callable[..., str]) -> None:
    for words in (["convert", "images"], ["convert", "text"], ["reshard"], ["train"]):
        sections = re.split(r"(?m)^(?=[a-z ]+:$)", shown(*words, "--help"))
        sizes = {section.partition(":")[0]: len(re.findall(r"(?m)^  --", section)) for section in sections[1:]}
        assert sizes["options"] == 0
        assert max(sizes.values()) <= 16, sizes


def test_shows_switches_with_their_opposites(shown: Callable[..., str]) -> None:
    assert re.search(r"(?m)^  --append, --no-append$", shown("convert", "images", "--help"))
