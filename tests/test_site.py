"""The site of scripts/docs: built, complete, without broken links, and without anything from other servers."""

from __future__ import annotations

import html
import re
import typing
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml

import beam_jobs
import tpudata
from tests.helpers.markdown import ROOT
from tests.helpers.site import build_site
from tpudata.cli import COMMANDS

# Attributes that a browser loads at once, by tag; links that a reader follows are not among them.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """What one page links to, loads, and offers as anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        # A canonical or alternate address is not loaded.
        if (
            tag in LOADED
            and LOADED[tag] in values
            and values.get("rel") not in ("canonical", "alternate", "next", "prev")
        ):
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Return the pages by their address below the site's root."""
    files = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path.relative_to(site).as_posix().removesuffix("index.html"): Page(path.read_text()) for path in files}


def test_every_link_and_anchor_resolves(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for address, page in pages.items():
        for link in (*page.links, *page.loaded):
            target = urlsplit(urljoin(f"site:///{address}", link) if "://" not in link else link)
            if target.scheme != "site":
                continue
            path = unquote(target.path).lstrip("/")
            if path in pages:
                is_there = not target.fragment or unquote(target.fragment) in pages[path].anchors
            else:
                is_there = (site / path).is_file()
            if not is_there:
                broken.append((address, link))
    assert broken == []


def test_pages_load_nothing_from_other_servers(site: Path, pages: dict[str, Page]) -> None:
    assert [link for page in pages.values() for link in page.loaded if "//" in link] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert [
        found for text in styles for found in re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", text)
    ] == []


def entries(part: object) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [page for below in (part.values() if isinstance(part, dict) else part) for page in entries(below)]  # type: ignore[attr-defined]


def test_the_navigation_lists_every_page(pages: dict[str, Page]) -> None:
    nav = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {"reference/commands.md", "reference/changelog.md", "reference/contributing.md"}
    assert sorted(nav) == sorted(written | made)
    assert {re.sub(r"(index)?\.md$", "", page).rstrip("/") for page in nav} == {
        address.rstrip("/") for address in pages
    }


def test_each_part_of_the_navigation_holds_one_kind_of_page() -> None:
    kinds = {
        "Tutorials": ("tutorials/",),
        "How to": ("convert/", "dataset/", "feed/", "train/"),
        "Reference": ("reference/",),
        "Explanation": ("concepts/", "reference/contributing.md"),
    }
    start, *parts = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert start == {"Start": "index.md"}
    found = {title: entries(below) for part in parts for title, below in part.items()}
    assert found.keys() == kinds.keys()
    assert [page for title, pages in found.items() for page in pages if not page.startswith(kinds[title])] == []


def test_the_api_reference_covers_all_public_names(pages: dict[str, Page]) -> None:
    # From the text: the import would load TensorFlow.
    text = (ROOT / "tpudata" / "estimator" / "__init__.py").read_text()
    estimator = re.findall(r'"(\w+)"', text.split("__all__")[1])
    modules = {"contrib", "export", "inputs", "tpu"}
    names = {f"tpudata.{name}" for name in tpudata.__all__ if name != "__version__"}
    names |= {f"tpudata.estimator.{name}" for name in estimator if name not in modules}
    names |= {f"tpudata.format.{name}" for name in tpudata.format.__all__}
    names |= {f"beam_jobs.{name}" for name in beam_jobs.__all__}
    anchors = {anchor for address, page in pages.items() if "/api/" in address for anchor in page.anchors}
    assert sorted(names - anchors) == []


def test_types_in_signatures_are_linked_or_explained(site: Path) -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/api/types.md").read_text(), re.MULTILINE))
    # Names of Python's typing and of other packages, and constants used as defaults.
    known = {
        *dir(typing),
        "Unpack",
        "NDArray",
        "PathLike",
        "Pipeline",
        "PipelineOptions",
        "PCollection",
        "Mesh",
        "None",
    }
    known |= {
        "NamedSharding",
        "DType",
        "TensorSpec",
        "Tensor",
        "Variable",
        "Operation",
        "ClusterSpec",
        "ClusterResolver",
        "ConfigProto",
        "Scaffold",
        "Session",
        "ProfilerHook",
        "Device",
        "AbstractContextManager",
        "False",
        "True",
        "SupportsIndex",
        "Generic",
    }
    unknown = set()
    for page in (site / "reference" / "api").rglob("index.html"):
        for signature in re.findall(r'<div class="doc-signature highlight">(.*?)</div>', page.read_text(), re.DOTALL):
            plain = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<a .*?</a>", "", signature, flags=re.DOTALL)))
            # The text after a colon or an arrow, without defaults, which may be strings.
            for annotation in re.findall(r"(?::|->) ([^=\n]+)", plain):
                words = set(re.findall(r"(?<![\w.'\"])_?[A-Z][A-Za-z]\w*", re.sub(r"Literal\[.*?\]", "", annotation)))
                unknown |= {(page.parent.name, word) for word in words - known - explained}
    assert sorted(unknown) == []


def test_the_command_reference_lists_each_command_and_some_flags(site: Path, pages: dict[str, Page]) -> None:
    commands = {"convert-images", "convert-text", *COMMANDS} - {"convert"}
    assert {f"tpudata-{name}" for name in commands} <= pages["reference/commands/"].anchors
    text = re.sub(r"<[^>]*>", "", (site / "reference" / "commands" / "index.html").read_text())
    for flag in (
        "--shards-multiple-of N",
        "--pack, --no-pack",
        "--step-time",
        "--quarantine, --no-quarantine",
        "--early-stop-goal {min,max}",
    ):
        assert flag in text


def test_the_command_reference_shows_keywords_and_whether_a_flag_changes_the_data(site: Path) -> None:
    text = (site / "reference" / "commands" / "index.html").read_text()
    rows = [re.sub(r"<[^>]*>", "", row) for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    found = {tuple(row.strip("\n").split("\n")[:3]) for row in rows}
    for row in (
        ("--shard-size SIZE", "shard_bytes", "yes, kept by append"),
        ("--num-shards N", "num_shards", "yes"),
        ("--workers N", "workers", ""),
        ("DIR", "input", ""),
    ):
        assert row in found
